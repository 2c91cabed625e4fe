"""A run on disk as DuckDB tables: its files, its config, the questions of `queries/`, and ad-hoc SQL."""
