"""A system with known answers: lognormal lengths cut at 8192, a p-norm roofline with a KV term, 16 GPUs, 1024 samples.

The curves are written out here, so that the answers do not depend on the project's own forms.
"""

from dataclasses import dataclass, replace

import numpy as np

from rlscope.model.analytic.steady_state import steady_states
from rlscope.model.arrays import Reals
from rlscope.model.lengths import LengthLaw
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, WeightUpdateCost, Workload

FLAT_S, PER_REQUEST_S = 8e-3, 3e-5
KV_S = 131072 / (3.35e12 * 0.9)
LENGTHS = LengthLaw.lognormal(1500, 0.6, max_output_tokens=8192)
UNLIMITED = 10**9


@dataclass(frozen=True, slots=True)
class PNorm:
    kv_s_per_token: float = KV_S

    def pass_s(self, running: Reals | float) -> Reals:
        return np.hypot(FLAT_S, PER_REQUEST_S * np.asarray(running))


@dataclass(frozen=True, slots=True)
class Affine:
    flat_s: float
    per_request_s: float
    kv_s_per_token: float = 0.0

    def pass_s(self, running: Reals | float) -> Reals:
        return self.flat_s + self.per_request_s * np.asarray(running)


def workload(**changes: float) -> Workload:
    return Workload(**{"lengths": LENGTHS, "prompt_tokens": 200, "group_size": 8, "samples_per_step": 1024} | changes)


def engine(**changes: object) -> Engine:
    given = {"gpus": 1, "curve": PNorm(), "max_running": UNLIMITED, "kv_capacity_tokens": 50e9 / 131072}
    return Engine(**given | changes)


def system(**changes: object) -> System:
    """Samplers that are ahead are held back by a queue of one batch, unless changed."""
    given = {
        "workload": workload(),
        "engine": engine(),
        "trainer": Trainer(tokens_per_gpu_s=3000, seen_gpus=8),
        "update": WeightUpdateCost(),
        "admission": Admission(queue_capacity_samples=1024),
    }
    return System(**given | changes)


def layout(trainer_gpus: int, sampler_gpus: int | None = None, running: int = UNLIMITED) -> Layout:
    return Layout(trainer_gpus, 16 - trainer_gpus if sampler_gpus is None else sampler_gpus, running)


def load_ratio(of: System, at: Layout) -> float:
    """Rate that the samplers could make over the rate that the trainers could take: each side's seconds of a step."""
    own, free = (steady_states(each, [at])[0] for each in (of, replace(of, trainer=Trainer(1e15, seen_gpus=1))))
    return own.train_s / free.step_s
