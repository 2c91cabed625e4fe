"""What SQL says badly: statistics, fits and predictions. Pure: frames and numbers in, frozen dataclasses out."""
