"""The one place that opens DuckDB: canonical tables, quality facts, SQL scripts."""
