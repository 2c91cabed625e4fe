"""The draws of a training rate, as arrays."""

from types import SimpleNamespace

import numpy as np

from rlscope.model.training.scaling import TrainingRate


def drawn(found: TrainingRate) -> SimpleNamespace:
    names = ("tokens_per_gpu_s", "scaling_exponent", "overhead_s")
    return SimpleNamespace(**{name: np.array([getattr(each, name) for each in found.draws]) for name in names})
