"""One function per picture: rows in, an Altair chart out; nothing but encoding.

Colours are CSS variables of the page, with a fallback for other places, so that one chart serves light, dark and
print. Every chart is a single view or layers over one, so that it can be as wide as what holds it.
"""
