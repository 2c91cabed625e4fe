"""Forecasts: predictions for other layouts and changes, and the recommendation that follows from them."""
