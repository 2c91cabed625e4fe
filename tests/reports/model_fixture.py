"""A model result of a made run: eight GPUs, of which two train and six sample; the trainers are the slower side.

It is what `model_run` says of it, so nothing here has to be kept in step with the model by hand.
"""

from dataclasses import replace

from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.forecast.result import ModelResult, model_run
from rlscope.model.lengths import LengthLaw
from rlscope.model.observed import Observed
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, WeightUpdateCost, Workload
from tests.kept import kept
from tests.model import known_run

LENGTHS = LengthLaw.lognormal(200, 0.6, max_output_tokens=1024)
ENGINES = 6
SYSTEM = System(
    Workload(LENGTHS, prompt_tokens=50.0, group_size=4, samples_per_step=64, trained_prompt_tokens=50.0),
    Engine(1, RooflineCurve(flat_s=0.01, per_request_s=7.5e-4, sharpness=2.0), 20_000),
    Trainer(tokens_per_gpu_s=1_800.0, seen_gpus=2, scaling_exponent=1.0),
    WeightUpdateCost(engine_pause_s=0.05, trainer_blocked_s=0.1),
)
QUESTION = replace(
    known_run.QUESTION,
    candidates=known_run.candidates_of(Admission(queue_capacity_samples=128)),
    most_staleness=8,
    remaining_steps=400,
    gpu_hour_price=2.5,
)


@kept
def changing_model() -> ModelResult:
    """The trainers get GPUs."""
    return model_run(observed(40), (observed(20, seed=2), observed(20, seed=3).steps), QUESTION)


@kept
def short_model() -> ModelResult:
    """The same run with too few steps to hold the model to; it does not say how many are left."""
    return model_run(observed(12), None, replace(QUESTION, remaining_steps=None, gpu_hour_price=None))


def observed(steps: int, seed: int = 1) -> Observed:
    """A stretch of so many steps, with the noise of the seed: samplers wait for room in the queue almost half of it."""
    run = known_run.observed(
        SYSTEM, Layout(2, ENGINES, max_running=32), steps=steps, batches=tuple(range(1, 33)), noise=0.03, seed=seed
    )
    seconds, tokens = (run.end_ns - run.start_ns) / 1e9, run.delivered.trained_tokens
    states = {("decoding", None): 0.55 * ENGINES * seconds, ("no_requests", "backpressure"): 0.45 * ENGINES * seconds}
    ages = ((4, tokens // 4), (5, tokens // 2), (6, tokens // 4))
    return replace(run, kv_capacity_tokens=20_000, engine_state_s=states, update_delay_s=0.15, staleness=ages)
