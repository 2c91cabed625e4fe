"""The HTML report in one file: template engine and figures."""
