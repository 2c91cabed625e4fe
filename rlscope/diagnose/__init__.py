"""One illness per module; `rules` lists them. Pure: evidence in, findings out, no wording."""
