"""The one-file HTML page: its template engine, its figures, and its first screen as a picture."""
