"""Runs of many kinds, drawn from a seed: a small system with its limits and rollout scheduling is simulated, and what
its hooks would have recorded of it is written down.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from rlscope.analysis.bottleneck import judge, measure_losses
from rlscope.analysis.interval import Interval
from rlscope.analysis.result import Loss, Verdict
from rlscope.model.calibration import UncalibratableError
from rlscope.model.decode.curves import Form, RooflineCurve
from rlscope.model.forecast.replay import Scheduling
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelConfig, ModelResult, NoModelResult, model_run
from rlscope.model.lengths import LengthLaw
from rlscope.model.observed import Delivered, Observed, PassCosts
from rlscope.model.simulate import NeverTrains, Settings, Simulated, simulate
from rlscope.model.system import Admission, Engine, Granularity, Layout, System, Trainer, WeightUpdateCost, Workload
from tests.model.known_run import QUESTION, load_of, pass_costs, stretch, trainer_steps

SHORT_STEPS: Final = 16
"""Too few to hold a part of them out."""
_STEPS: Final = 44
_PASSES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A run as it truly is."""

    kind: str
    system: System
    layout: Layout
    settings: Settings
    steps: int
    one_batch: bool
    """Whether its engines ran one batch size only."""
    most_staleness: int | None
    """What its user asks."""
    form: Form | None
    """Of the decode curve, where the model's kind tells it."""

    @property
    def synchronous(self) -> bool:
        return self.kind == "synchronous"


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What is said of it."""

    drawn: Drawn
    observed: Observed
    model: ModelResult | NoModelResult
    verdict: Verdict


def _admission(rng: np.random.Generator, batch: int) -> Mapping[str, Callable[[], Admission]]:
    """By kind; the limits are drawn in batches of a step."""

    def batches(least: float, most: float) -> int:
        return round(batch * rng.uniform(least, most))

    def version_cap() -> int:
        return int(rng.integers(1, 4))

    return {
        "a queue that fills": lambda: Admission(batches(1.0, 2.0)),
        "a roomy queue": lambda: Admission(batches(3.0, 6.0)),
        "no limit": Admission,
        "a queue that loses its oldest": lambda: Admission(batches(1.5, 3.0), "drop_oldest"),
        "a limit in flight": lambda: Admission(max_in_flight_samples=batches(1.2, 4.0)),
        "a limit on running samples": lambda: Admission(batches(2.0, 4.0), max_running_samples=batches(0.3, 3.0)),
        "a cap by admission": lambda: Admission(batches(2.0, 4.0), max_staleness=version_cap()),
        "a cap that drops": lambda: Admission(batches(2.0, 4.0), max_staleness=version_cap(), staleness_policy="drop"),
        "a cap that publications wait for": lambda: Admission(
            batches(2.0, 4.0), max_staleness=version_cap(), staleness_policy="publication_waits"
        ),
    }


def _draw(rng: np.random.Generator) -> Drawn:
    group_size = int(rng.choice([1, 1, 2, 4, 8]))
    batch = group_size * int(rng.integers(4, 40 // group_size + 5))
    engine_gpus = int(rng.choice([1, 1, 1, 2]))
    gpus = int(rng.integers(1 + engine_gpus, 17))
    engines = int(rng.integers(1, (gpus - 1) // engine_gpus + 1))
    running = int(rng.choice([2, 4, 8, 16]))
    layout = Layout(gpus - engines * engine_gpus, engines * engine_gpus, running)
    mean_tokens = rng.uniform(15.0, 60.0)
    lengths = LengthLaw.lognormal(mean_tokens, rng.uniform(0.2, 1.0), max_output_tokens=round(mean_tokens * 6))
    curve = RooflineCurve(
        flat_s=0.02, per_request_s=0.02 / rng.choice([3.0, 10.0, 40.0]), sharpness=2.0, kv_s_per_token=1e-6
    )
    # How many times as many tokens the trainers could take as the engines can make.
    made_per_s = engines * running / float(curve.pass_s(float(running)))
    widest = 3.0 if rng.random() < 0.8 else 1.05
    speed = float(np.exp(rng.uniform(-np.log(widest), np.log(widest))))
    step_s = batch * lengths.mean_tokens / (made_per_s * min(1.0, speed))
    update = WeightUpdateCost()
    if widest > 2.0 and rng.random() < 0.6:
        update = WeightUpdateCost(*(float(part) for part in rng.uniform(0.0, 0.2, 3) * step_s))
    environment_s = rng.uniform(0.1, 3.0) * mean_tokens * float(curve.pass_s(1.0)) if rng.random() < 0.2 else 0.0
    system = System(
        Workload(lengths, 20.0, group_size, batch, trained_prompt_tokens=20.0, environment_s=environment_s),
        Engine(engine_gpus, curve, 10**6),
        Trainer(made_per_s * speed * (1.0 + 20.0 / mean_tokens) / layout.trainer_gpus, layout.trainer_gpus),
        update,
    )
    slowness = None
    if engines >= 3 and rng.random() < 0.15:
        slowness = (float(rng.choice([1.3, 2.0])), *[1.0] * (engines - 1))
    settings = Settings(
        queue_order=rng.choice(["fifo", "oldest_first"]),
        dispatch=rng.choice(["least_loaded", "pulled"]),
        engine_slowness=slowness,
        step_noise=float(rng.choice([0.0, 0.03, 0.1])),
    )
    kinds = _admission(rng, batch)
    kind = rng.choice([*kinds, "synchronous"])
    drawn = Drawn(
        kind=str(kind),
        system=system,
        layout=layout,
        settings=settings,
        steps=SHORT_STEPS if rng.random() < 0.15 else _STEPS,
        one_batch=rng.random() < 0.15,
        most_staleness=int(rng.integers(1, 4)) if rng.random() < 0.1 else None,
        form=None if rng.random() < 0.05 else "pnorm",
    )
    if kind == "synchronous":
        # One step's samples are all that runs: none is of another version.
        return replace(drawn, system=replace(system, admission=Admission(max_staleness=0)))
    return replace(drawn, system=replace(system, admission=kinds[str(kind)]()))


def drawn_run(seed: int) -> tuple[Drawn, Simulated]:
    """A run that can run; the same for a seed."""
    rng = np.random.default_rng([seed, 13])
    while True:
        drawn = _draw(rng)
        try:
            return drawn, simulate(drawn.system, drawn.layout, steps=drawn.steps, seed=seed, settings=drawn.settings)
        except (ValueError, NeverTrains):
            # Limits under which no step ever starts.
            continue


def told(seed: int) -> Told:
    """What the model and the verdict say of a generated run."""
    drawn, simulated = drawn_run(seed)
    run = observed_of(drawn, simulated, seed)
    states, interval = timeline_of(drawn, simulated), Interval(0, run.end_ns)
    losses = measure_losses(states, _dropped_ratio(simulated))
    try:
        # Its halves are alike: what the model predicts is that the run goes on as it was.
        halves = (run, run.steps) if run.steps.period_s.size >= STEPS_TO_PREDICT else None
        model = model_run(run, halves, _config(drawn, run, losses))
    except UncalibratableError as error:
        model = NoModelResult(str(error))
    ranking = None if isinstance(model, NoModelResult) else model.ranking
    gpus = drawn.layout.trainer_gpus + drawn.layout.sampler_gpus
    verdict = judge(gpus, simulated.steps, states, interval, losses, ranking)
    return Told(drawn, run, model, verdict)


def _config(drawn: Drawn, run: Observed, losses: tuple[Loss, ...]) -> ModelConfig:
    settings = replace(drawn.settings, engine_slowness=None, step_noise=0.0)
    return replace(
        QUESTION,
        candidates=(Scheduling("group", settings, Admission() if drawn.synchronous else drawn.system.admission),),
        form=drawn.form,
        granularity=Granularity(drawn.system.engine.gpus),
        most_staleness=drawn.most_staleness,
        remaining_steps=100,
        lost_gpu_s={loss.cause: loss.gpu_s for loss in losses},
    )


def observed_of(drawn: Drawn, simulated: Simulated, seed: int) -> Observed:
    """What the hooks would have recorded of it; times of single steps vary by two hundredths, unless they wait less."""
    rng, count, system = np.random.default_rng([seed, 14]), simulated.steps, drawn.system
    trainers, engines = simulated.trainer_seconds, simulated.engine_totals
    period_s = np.array(simulated.step_periods_s)
    work_s, publish_s = (trainers.train_s + trainers.phases_s) / count, trainers.publish_s / count
    response_tokens = np.array(simulated.step_trained_tokens)
    tokens = trainer_steps(system, period_s, period_s, publish_s, response_tokens).tokens
    noisy_s = work_s * tokens / tokens.mean() * np.exp(0.02 * rng.standard_normal(count))
    train_s = np.minimum(noisy_s, np.maximum(period_s - publish_s, 1e-6))
    steps = trainer_steps(system, period_s, train_s, publish_s, response_tokens)
    return stretch(
        system,
        drawn.layout,
        steps,
        _passes(drawn, simulated, rng),
        {
            ("decoding", None): engines.decode_s,
            ("applying_weights", None): engines.pause_s,
            **{("no_requests", reason): seconds for reason, seconds in simulated.idle_s.items()},
        },
        end_ns=round(simulated.seconds * 1e9),
        environment_samples=system.workload.environment_s * float(steps.samples.sum()) / simulated.seconds,
        delivered=Delivered(int(response_tokens.sum()), sum(simulated.step_dropped_tokens), 0),
        staleness=simulated.staleness.tokens.counts,
        oldest_staleness=simulated.staleness.samples.counts,
        load=load_of(simulated),
    )


def _passes(drawn: Drawn, simulated: Simulated, rng: np.random.Generator) -> PassCosts:
    """Batches about the mean that ran; most passes are of that one."""
    limit, mean = (
        drawn.layout.max_running,
        max(1, round(simulated.engine_totals.tokens / simulated.engine_totals.passes)),
    )
    shares = (1.0,) if drawn.one_batch else (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    batches = sorted({int(np.clip(round(mean * share), 1, limit)) for share in shares})
    slowness = drawn.settings.engine_slowness or (1.0,) * simulated.engines
    rows = [(engine, running) for engine in range(simulated.engines) for running in batches]
    engine, running = (np.array(column) for column in zip(*rows, strict=True))
    passes = np.where(running == mean, _PASSES, _PASSES // 100)
    kv_tokens = running * (drawn.system.workload.prompt_tokens + drawn.system.workload.lengths.mean_tokens / 2.0)
    curve = drawn.system.engine.curve
    pass_s = (curve.pass_s(running.astype(np.float64)) + curve.kv_s_per_token * kv_tokens) * np.array(slowness)[engine]
    noisy_s = pass_s * np.exp(0.002 * rng.standard_normal(running.size))
    return pass_costs(running, kv_tokens, passes, noisy_s, engine=engine)


def timeline_of(drawn: Drawn, simulated: Simulated) -> pl.DataFrame:
    """GPU-seconds by side, state and reason, in one bucket."""
    trainers, engines, gpus = simulated.trainer_seconds, simulated.engine_totals, drawn.layout.trainer_gpus
    held = {"staleness_cap": "barrier"} if drawn.synchronous else {}
    states = [
        ("trainer", "train", None, gpus * (trainers.train_s + trainers.phases_s)),
        ("trainer", "publishing_weights", None, gpus * trainers.publish_s),
        ("trainer", "waiting_for_samples", "samples", gpus * trainers.wait_samples_s),
        ("trainer", "waiting_for_staleness_cap", "staleness_cap", gpus * trainers.wait_staleness_cap_s),
    ]
    of_engine = drawn.system.engine.gpus
    states += [
        ("sampler", "decoding", None, of_engine * (engines.decode_s + engines.prefill_s + engines.recompute_s)),
        ("sampler", "applying_weights", None, of_engine * engines.pause_s),
        *(
            ("sampler", "no_requests", held.get(reason, reason), of_engine * seconds)
            for reason, seconds in simulated.idle_s.items()
        ),
    ]
    rows = [(role, role, state, reason, 0, gpu_s) for role, state, reason, gpu_s in states]
    texts = dict.fromkeys(("role", "worker_id", "state", "reason"), pl.String)
    return pl.DataFrame(rows, schema={**texts, "bucket_start_ns": pl.Int64, "gpu_s": float}, orient="row")


def _dropped_ratio(simulated: Simulated) -> float:
    dropped_tokens = sum(simulated.step_dropped_tokens)
    return dropped_tokens / (dropped_tokens + sum(simulated.step_trained_tokens))
