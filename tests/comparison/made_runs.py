"""Runs made by hand: every step's samples, tokens, period and states in sight."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from rlscope.analysis.result import RunFacts, Staleness, SteadyWindow, Throughput, TokenStaleness
from rlscope.comparison.facts import ComparedRun, GpuTime, StateKey, StepTable
from rlscope.document import extended
from tests.reports.analysis_fixture import NO_ROWS, empty_analysis

WORK, WAIT = StateKey("trainer", "train", None), StateKey("trainer", "waiting_for_samples", "samples")
DECODE, IDLE = StateKey("sampler", "decoding", None), StateKey("sampler", "no_requests", "backpressure")
SECOND = 10**9
EVEN = (2.0,) * 20
"""Twenty steps of two seconds."""


def made_run(
    name: str = "made",
    *,
    periods_s: Sequence[float] = EVEN,
    tokens: Sequence[int] | None = None,
    samples: Sequence[int] | None = None,
    states: Mapping[StateKey, Sequence[float]] | None = None,
    in_flight: Sequence[float] | None = None,
    in_queue: Sequence[float] | None = None,
    gpus: Mapping[str, int] | None = None,
    settings: Mapping[str, object] | None = None,
    rewards: Sequence[float] | None = None,
    devices: Mapping[str, str] | None = None,
    first_step: int = 1,
) -> ComparedRun:
    """A run whose steady state is all of it; states: GPU-seconds a step, the trainers' work unless said otherwise."""
    count, held = len(periods_s), dict(gpus or {"trainer": 1, "sampler": 1})
    periods = np.array(periods_s, dtype=float)
    tokens_of = np.array(tokens if tokens is not None else [1000] * count)
    samples_of = np.array(samples if samples is not None else [10] * count)
    spent = {key: np.array(each, dtype=float) for key, each in (states or {WORK: periods, DECODE: periods}).items()}
    flight = np.array(in_flight if in_flight is not None else [0.0] * count, dtype=float)
    queued = np.array(in_queue if in_queue is not None else [0.0] * count, dtype=float)
    length_ns = round(float(periods.sum()) * SECOND)
    time = GpuTime(
        {key: round(float(each.sum()) * SECOND) for key, each in spent.items()}, held, length_ns,
        int(tokens_of.sum()), count,
    )  # fmt: skip
    rate, known = float(tokens_of.sum() / periods.sum()), float(tokens_of.sum())
    ages = TokenStaleness(float((flight + queued).sum()) / known, 0, 1, 1, 1, ((0, int(known)),))
    steps = np.arange(first_step, first_step + count)
    answers = dict(NO_ROWS)
    if rewards is not None:
        ends_ns = (np.cumsum(periods) * SECOND).astype(int)
        columns = {"step": steps, "end_ns": ends_ns, "samples": samples_of, "reward_mean": rewards}
        nothing = pl.lit(None, pl.Float64)
        answers["training_metrics"] = pl.DataFrame(columns).with_columns(loss=nothing, entropy=nothing)
    split = [held.get(role, 0) for role in ("trainer", "sampler", "colocated")]
    facts = RunFacts(
        name, 0, float(periods.sum()), sum(split), *split, count, int(samples_of.sum()),
        int(tokens_of.sum()), max_staleness=None,
        window=SteadyWindow(0, length_ns, first_step, first_step + count - 1), window_reason="",
        devices=dict(devices or {}),
    )  # fmt: skip
    return extended(
        ComparedRun, empty_analysis(),
        name=name, run=facts, max_running=None, throughput=Throughput(rate, rate, None), whole=time, answers=answers,
        staleness=Staleness(ages, None, flight.sum() / known, queued.sum() / known, None, {}),
        promised=(), settings=dict(settings or {}),
        table=StepTable(
            steps, periods, samples_of, tokens_of, spent, flight + queued, flight, queued, tokens_of.astype(float),
            spent.get(WORK, np.zeros(count)), tokens_of,
        ),
        steady=time, steady_staleness_p95=1.0, update_s=np.zeros(0), dropped_ratio=None, dropping_ratio=0.0,
        steps_per_version=None, counts_prompts=False,
    )  # fmt: skip
