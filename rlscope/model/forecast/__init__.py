"""What layouts would achieve: forecasts, recommendation, gap, what-if, sensitivity, held-out check and plans."""
