"""Opens a run on disk as DuckDB tables: its files, its config, the questions in `queries/`, and ad-hoc SQL."""
