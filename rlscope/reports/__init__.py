"""Words and pictures for an analysis: the terminal card, the JSON document and the page all render the same facts."""
