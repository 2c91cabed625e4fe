"""Reports of an analysis: terminal card, JSON documents, Markdown and page, all from the same facts."""
