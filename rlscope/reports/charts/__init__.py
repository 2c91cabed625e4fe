"""Charts: each function takes rows and returns an Altair chart, and contains nothing but the encoding.

Colors are CSS variables with fallbacks, so the same chart works in light mode, in dark mode and on paper. Every chart
is a single view or a layered view, so that it can fill the width of its container.
"""
