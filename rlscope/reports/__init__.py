"""Reports of an analysis: terminal card, JSON documents, Markdown, page and picture, all from the same facts."""
