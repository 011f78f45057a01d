"""ClickHouse's SQL: `${NAME}` is an expression of the table, `{name:Type}` a bound value."""
