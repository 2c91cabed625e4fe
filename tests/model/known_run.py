"""Stretches of runs whose truth is known: every pass and every step takes exactly what a given system says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlscope.model.analytic.steady_state import SteadyState, steady_states
from rlscope.model.arrays import Counts, Reals
from rlscope.model.calibration import Calibration, calibrate
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.forecast.replay import Scheduling
from rlscope.model.forecast.result import ModelConfig
from rlscope.model.lengths import LengthLaw
from rlscope.model.observed import Delivered, Observed, PassCosts, SeenLoad, TrainerSteps
from rlscope.model.simulate import Settings, Simulated
from rlscope.model.system import Admission, Engine, Granularity, Layout, System, Trainer, WeightUpdateCost, Workload
from tests.kept import kept

LENGTHS = LengthLaw(np.array([100.0, 200.0, 300.0]), np.array([0.25, 0.5, 0.25]))
TRUTH = System(
    Workload(LENGTHS, prompt_tokens=50.0, group_size=4, samples_per_step=256, trained_prompt_tokens=50.0),
    Engine(1, RooflineCurve(flat_s=0.01, per_request_s=2e-4, sharpness=2.0, kv_s_per_token=1e-7), 1_000_000),
    Trainer(tokens_per_gpu_s=8_000.0, seen_gpus=2, scaling_exponent=1.0),
    WeightUpdateCost(engine_pause_s=0.05, trainer_blocked_s=0.1),
)
TODAY = Layout(trainer_gpus=2, sampler_gpus=6, max_running=64)


def candidates_of(admission: Admission) -> tuple[Scheduling, ...]:
    return (Scheduling("group", Settings(), admission),)


QUESTION = ModelConfig(
    candidates=candidates_of(Admission()),
    form=None,
    prior=None,
    granularity=Granularity(gpus_per_engine=1),
    most_staleness=None,
    remaining_steps=None,
    gpu_hour_price=None,
)
"""What is asked of a run of which nothing else is known."""


def steady(system: System = TRUTH, layout: Layout = TODAY) -> SteadyState:
    """The steady state of the truth."""
    return steady_states(system, (layout,))[0]


def observed(
    system: System = TRUTH,
    layout: Layout = TODAY,
    *,
    steps: int = 40,
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64),
    noise: float = 0.01,
    seed: int = 3,
) -> Observed:
    """What a run of that system would show; engines visit the batches, most of the time the one that they settle at."""
    rng = np.random.default_rng(seed)
    state = steady(system, layout)
    engines = layout.sampler_gpus // system.engine.gpus
    period_s = state.step_s * np.exp(noise * rng.standard_normal(steps))
    train_s = (state.train_s - system.update.trainer_blocked_s) * np.exp(noise * rng.standard_normal(steps))
    tokens = np.full(steps, round(system.workload.samples_per_step * system.workload.lengths.mean_tokens))
    paused_s = engines * system.update.engine_pause_s * steps
    running = np.array(batches)
    kv_tokens = running * np.linspace(80.0, 320.0, running.size)
    passes = np.append(np.full(running.size - 1, 200), 20_000)
    pass_s = system.engine.curve.pass_s(running.astype(np.float64)) + system.engine.curve.kv_s_per_token * kv_tokens
    busy_s = passes * pass_s * np.exp(noise * rng.standard_normal(running.size) / 10.0)
    states = {
        ("decoding", None): engines * float(period_s.sum()) - paused_s,
        ("applying_weights", None): paused_s,
    }
    return stretch(
        system,
        layout,
        trainer_steps(system, period_s, train_s, system.update.trainer_blocked_s, tokens),
        pass_costs(running, kv_tokens, passes, pass_s, engine=np.arange(running.size) % engines, busy_s=busy_s),
        states,
        staleness=((0, 1_000), (1, 3_000)),
    )


def stretch(
    system: System,
    layout: Layout,
    steps: TrainerSteps,
    passes: PassCosts,
    engine_state_s: Mapping[tuple[str, str | None], float],
    **more: Any,
) -> Observed:
    """What hooks record of a run of that system, which drops nothing unless `more` says so."""
    samples = int(steps.samples.sum())
    given = {
        "start_ns": 0,
        "end_ns": round(float(steps.period_s.sum()) * 1e9),
        "trainer_gpus": layout.trainer_gpus,
        "engines": layout.sampler_gpus // system.engine.gpus,
        "gpus_per_engine": system.engine.gpus,
        "max_running": layout.max_running,
        "kv_capacity_tokens": None,
        "device_name": None,
        "lengths": system.workload.lengths,
        "began_samples": samples,
        "prompt_tokens": system.workload.prompt_tokens,
        "group_size": system.workload.group_size,
        "finished_samples": samples,
        "environment_samples": 0.0,
        "delivered": Delivered(int(steps.response_tokens.sum()), 0, 0),
        "apply_s": system.update.engine_pause_s,
        "update_delay_s": system.update.engine_pause_s + system.update.delay_s,
        "kv_kept": True,
    }
    return Observed(**given | {"steps": steps, "passes": passes, "engine_state_s": engine_state_s} | more)


def trainer_steps(
    system: System, period_s: Reals, train_s: Reals, publish_s: float, response_tokens: Counts
) -> TrainerSteps:
    """Steps that train, publish a version and wait for the rest of their time."""
    nothing_s = np.zeros(period_s.size)
    samples = np.full(period_s.size, system.workload.samples_per_step)
    return TrainerSteps(
        period_s=period_s,
        train_s=train_s,
        logprobs_s=nothing_s,
        publish_s=nothing_s + publish_s,
        other_s=nothing_s,
        wait_s=np.maximum(period_s - train_s - publish_s, 0.0),
        samples=samples,
        tokens=np.rint(response_tokens + samples * system.workload.trained_prompt_tokens).astype(np.int64),
        response_tokens=response_tokens,
        published=np.ones(period_s.size, dtype=np.int64),
    )


def pass_costs(running: Counts, kv_tokens: Reals, passes: Counts, pass_s: Reals, **more: Any) -> PassCosts:
    """So many passes of each batch, each so long, which decode a token for each request and no prompt."""
    nothing = np.zeros(running.size)
    given = {
        "engine": nothing.astype(np.int64),
        "prefills": nothing > 0.0,
        "in_update": nothing > 0.0,
        "rows": passes,
        "busy_s": passes * pass_s,
        "between_s": nothing,
        "pass_p50_s": pass_s,
        "decode_tokens": passes * running,
        "prefill_tokens": nothing.astype(np.int64),
    }
    return PassCosts(**given | {"running": running, "kv_tokens": kv_tokens, "passes": passes} | more)


def calibration_of(run: Observed, admission: Admission | None = None, **known: Any) -> Calibration:
    """What the model takes a run for."""
    return calibrate(run, admission or Admission(), None, np.random.default_rng(0), **known)


@kept
def calibrated() -> Calibration:
    """What the model takes that run for."""
    return calibration_of(observed())


def slowed(run: Observed, *factors: float) -> Observed:
    """The run, with passes of its first engines that take so many times as long."""
    by_engine = np.ones(run.engines)
    by_engine[: len(factors)] = factors
    own = by_engine[run.passes.engine]
    slower = replace(run.passes, busy_s=run.passes.busy_s * own, pass_p50_s=run.passes.pass_p50_s * own)
    return replace(run, passes=slower)


def longer(run: Observed, change_ratio: float) -> Observed:
    """The same stretch with responses that grow by so much from its first step to its last, as long in the middle."""
    growth = np.linspace(1.0, 1.0 + change_ratio, run.steps.samples.size)
    tokens = np.rint(run.steps.response_tokens * growth / growth.mean()).astype(np.int64)
    return replace(run, steps=replace(run.steps, response_tokens=tokens))


def load_of(simulated: Simulated) -> SeenLoad:
    """What hooks see of the load of a run that is simulated."""
    trainers = simulated.trainer_seconds
    return SeenLoad(
        running_samples=simulated.mean_running * simulated.engines,
        in_flight_samples=simulated.mean_in_flight_samples,
        queued_samples=simulated.mean_queued_samples,
        wait_samples_ratio=trainers.wait_samples_s / simulated.seconds,
        wait_staleness_cap_ratio=trainers.wait_staleness_cap_s / simulated.seconds,
    )
