"""A model result of a made run: eight GPUs, of which two train and six sample; the trainers are the slower side.

It is what `model_run` says of it, so nothing here has to be kept in step with the model by hand.
"""

from dataclasses import replace

import numpy as np

from rlscope.model.forecast.result import ModelConfig, ModelResult, model_run
from rlscope.model.lengths import LengthLaw
from rlscope.model.observed import Delivered, Observed, PassCosts, TrainerSteps
from rlscope.model.simulate import Settings
from rlscope.model.system import Admission, Granularity
from tests.kept import kept

LENGTHS = LengthLaw.lognormal(200, 0.6, max_output_tokens=1024)
PROMPT_TOKENS = 50
SAMPLES_PER_STEP = 64
TRAINED_TOKENS_PER_S = 3_600.0
ENGINES = 6
QUESTION = ModelConfig(
    admission=Admission(queue_capacity_samples=128),
    settings=Settings(),
    prior=None,
    granularity=Granularity(gpus_per_engine=1),
    most_staleness=8,
    remaining_steps=400,
    gpu_hour_price=2.5,
    form=None,
)


@kept
def changing_model() -> ModelResult:
    """The trainers get GPUs."""
    return model_run(observed(40), (observed(20, seed=2), observed(20, seed=3)), QUESTION)


@kept
def short_model() -> ModelResult:
    """The same run with too few steps to hold the model to; it does not say how many are left."""
    return model_run(observed(12), None, replace(QUESTION, remaining_steps=None, gpu_hour_price=None))


def tried_model() -> ModelResult:
    """The same as something to try: as if it gained less than the model may err on so few steps."""
    made = short_model()
    first, *rest = made.ranking.actions
    return replace(
        made,
        recommendation=replace(made.recommendation, reason="too_short"),
        ranking=replace(made.ranking, actions=(replace(first, kind="probe"), *rest)),
    )


def observed(steps: int, seed: int = 1) -> Observed:
    """A stretch of so many steps, with the noise of the seed."""
    made = _steps(steps, np.random.default_rng(seed))
    seconds = float(made.period_s.sum())
    tokens = int(made.response_tokens.sum())
    return Observed(
        start_ns=0,
        end_ns=round(seconds * 1e9),
        trainer_gpus=2,
        engines=ENGINES,
        gpus_per_engine=1,
        max_running=32,
        kv_capacity_tokens=20_000,
        device_name=None,
        steps=made,
        passes=_passes(np.random.default_rng(seed), seconds),
        engine_state_s={
            ("decoding", None): 0.55 * ENGINES * seconds,
            ("no_requests", "backpressure"): 0.45 * ENGINES * seconds,
        },
        lengths=LENGTHS,
        began_samples=steps * SAMPLES_PER_STEP,
        finished_samples=steps * SAMPLES_PER_STEP,
        prompt_tokens=float(PROMPT_TOKENS),
        group_size=4,
        environment_samples=0.0,
        delivered=Delivered(tokens, 0, 0),
        apply_s=0.05,
        update_delay_s=0.15,
        kv_kept=True,
        staleness=((4, tokens // 4), (5, tokens // 2), (6, tokens // 4)),
    )


def _steps(steps: int, rng: np.random.Generator) -> TrainerSteps:
    samples = np.full(steps, SAMPLES_PER_STEP)
    response_tokens = np.rint(rng.normal(LENGTHS.mean_tokens, 6.0, steps) * SAMPLES_PER_STEP).astype(np.int64)
    tokens = response_tokens + PROMPT_TOKENS * samples
    train_s = tokens / TRAINED_TOKENS_PER_S * rng.normal(1.0, 0.03, steps)
    zeros, publish_s = np.zeros(steps), np.full(steps, 0.1)
    return TrainerSteps(
        period_s=train_s + publish_s,
        train_s=train_s,
        logprobs_s=zeros,
        publish_s=publish_s,
        other_s=zeros,
        wait_s=zeros,
        samples=samples,
        tokens=tokens,
        response_tokens=response_tokens,
        published=np.ones(steps, dtype=np.int64),
    )


def _passes(rng: np.random.Generator, seconds: float) -> PassCosts:
    """Passes of every batch size up to 32, and one row of prefill per engine."""
    running = np.tile(np.arange(1, 33), ENGINES)
    pass_s = np.hypot(0.010, 0.0006 * running) * rng.normal(1.0, 0.02, running.size)
    passes = np.maximum(4, np.rint(0.5 * seconds / 32 / pass_s)).astype(np.int64)
    engine = np.repeat(np.arange(ENGINES), 32)
    prefill = np.full(ENGINES, 200)
    return PassCosts(
        engine=np.concatenate([engine, np.arange(ENGINES)]),
        running=np.concatenate([running, np.full(ENGINES, 16)]),
        kv_tokens=np.concatenate([running * 180.0, np.full(ENGINES, 2_880.0)]),
        prefills=np.concatenate([np.zeros(running.size, dtype=np.bool_), np.ones(ENGINES, dtype=np.bool_)]),
        rows=np.concatenate([passes, prefill]),
        passes=np.concatenate([passes, prefill]),
        busy_s=np.concatenate([passes * pass_s, prefill * 0.02]),
        between_s=np.zeros(running.size + ENGINES),
        pass_p50_s=np.concatenate([pass_s, np.full(ENGINES, 0.02)]),
        decode_tokens=np.concatenate([running * passes, prefill * 16]),
        prefill_tokens=np.concatenate([np.zeros(running.size, dtype=np.int64), prefill * PROMPT_TOKENS]),
    )
