"""From files to the canonical tables: sources read bytes, dialects read spans."""
