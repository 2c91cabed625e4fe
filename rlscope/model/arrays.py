"""Array types of the model, each defined once."""

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
"""Whole numbers: counts, tokens, versions, and indices into other arrays."""
Flags = npt.NDArray[np.bool_]
