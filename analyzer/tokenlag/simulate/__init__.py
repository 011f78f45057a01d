"""A small deterministic engine simulator, and traces of it with known truth."""
