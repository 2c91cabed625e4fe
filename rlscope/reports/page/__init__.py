"""The HTML report in one file: template engine, figures, and the card as a picture."""
