"""Time of a decode pass by batch size: curves, measurements, hardware prior, posterior and fit."""
