"""Sources: what turns the bytes of one format into span rows. No source knows a dialect."""
