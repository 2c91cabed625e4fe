"""One function per chart: rows in, an Altair chart out, nothing but encoding.

Colours are CSS variables with fallbacks, so one chart serves light mode, dark mode and print. Every chart is a single
or layered view, so it can fill the width of its container.
"""
