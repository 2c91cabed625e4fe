"""The one-file HTML page: template engine, figures, and the first screen as a picture."""
