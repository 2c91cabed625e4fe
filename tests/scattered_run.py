"""Runs of random rows in every table: samples that resume on other engines, are delivered twice or never, waits that
overlap, rows outside their worker's life, and values that are not recorded.
"""

import random
from pathlib import Path
from typing import Any, Final

from tests.trace_folder import (
    Row,
    activity,
    delivery_row,
    engine_row,
    gpu_row,
    queue_row,
    sample_row,
    train_row,
    update_row,
    worker,
    write_run,
)

MS: Final = 10**6
START_NS: Final = 1_790_000_000 * 10**9
LENGTH_NS: Final = 20_000 * MS
STEPS: Final = 12
SAMPLERS: Final = ("e0", "e1", "e2")
TRAINERS: Final = ("t0", "t1")
OUTCOMES: Final = ("trained", "trained", "trained", "dropped_stale", "filtered", "abandoned")
_ACTIVITIES: Final = ("wait", "wait", "generate", "weight_update", "checkpoint", "eval", "startup", "unheard_of")


class _Draws:
    """Random values of a run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.8 else None

    def time_ns(self) -> int:
        return START_NS + self.random.randrange(LENGTH_NS)

    def span(self, longest_ms: int) -> tuple[int, int]:
        start_ns = self.time_ns()
        return start_ns, start_ns + self.random.randrange(1, longest_ms * MS)


UNORDERED = ("delivered_samples", "sample_totals", "sample_uses")
"""Questions whose header says that their rows are in no order."""


def scattered_run(folder: Path, seed: int = 0, samples: int = 300) -> Path:
    """Write a run of six workers on two hosts, whose causes and effects contradict each other."""
    workers, tables = scattered_rows(seed, samples)
    return write_run(folder, workers, {"samples_per_step": 16}, **tables)


def scattered_rows(seed: int, samples: int) -> tuple[list[Row], dict[str, list[Row]]]:
    """The workers of such a run, and their rows by table."""
    draws = _Draws(seed)
    names = (*SAMPLERS, *TRAINERS, "c0")
    workers = [_worker(draws, name) for name in names]
    segments = [row for number in range(samples) for row in _segments(draws, f"s{number}")]
    tables: dict[str, list[Row]] = {
        "samples": segments,
        "deliveries": _deliveries(draws, samples),
        "engine_steps": [row for name in SAMPLERS for row in _engine_rows(draws, name)],
        "train_steps": [_train_row(draws, name, step) for name in TRAINERS for step in range(STEPS)],
        "weight_updates": list(_updates(draws)),
        "activities": [_activity(draws, draws.random.choice(names)) for _ in range(120)],
        "queue_depths": [queue_row("c0", draws.time_ns(), draws.random.randrange(50)) for _ in range(40)],
        "gpu_samples": [
            gpu_row(name, START_NS + tick * 250 * MS, draws.maybe(draws.random.random()))
            for name in (*SAMPLERS, *TRAINERS)
            for tick in range(80)
        ],
        "reported": [
            {"worker_id": name, "time_ns": draws.time_ns(), "step": draws.maybe(step), "name": "loss", "value": 0.1}
            for name in TRAINERS
            for step in range(STEPS)
        ],
    }
    # A worker without a worker file.
    tables["engine_steps"].append(engine_row("gone", *draws.span(10)))
    return workers, tables


def _worker(draws: _Draws, name: str) -> Row:
    role = {"e": "sampler", "t": "trainer", "c": "controller"}[name[0]]
    more = {"gpu_count": 0 if role == "controller" else draws.random.choice((1, 4)), "gpu_ids": [f"GPU-{name[1]}"]}
    more["host"] = "host-b" if role == "sampler" else "host-a"
    end_ns = START_NS + LENGTH_NS - draws.random.randrange(2_000 * MS)
    if name == "e1":
        more |= {"stopped_ns": None, "last_flush_ns": end_ns}
    return worker(name, role, START_NS, end_ns, kv_capacity_tokens=draws.maybe(10_000), max_running=32) | more


def _segments(draws: _Draws, sample_id: str) -> list[Row]:
    group_id = draws.maybe(f"g{int(sample_id[1:]) // 4}")
    rows: list[Row] = []
    started_ns = draws.time_ns()
    for segment in range(draws.random.choice((1, 1, 1, 2, 3))):
        version, tokens = draws.random.randrange(STEPS), draws.random.randrange(60)
        cut = draws.random.randrange(tokens + 1)
        runs = [(version, 0, cut), (version + 1, cut, tokens)]
        finished_ns = started_ns + draws.random.randrange(1, 900 * MS)
        rows.append(
            sample_row(
                sample_id,
                draws.random.choice(SAMPLERS),
                [run for run in runs if run[1] < run[2]],
                segment=segment,
                group_id=group_id,
                submitted_ns=draws.maybe(started_ns - draws.random.randrange(50 * MS)),
                started_ns=draws.maybe(started_ns),
                finished_ns=finished_ns,
                prompt_tokens=draws.random.randrange(1, 100),
                version_source=draws.random.choice(("engine", "segment", "admission", "unheard_of")),
                finish_reason=draws.maybe(draws.random.choice(("stop", "length", "abort"))),
                preemptions=draws.maybe(draws.random.randrange(3)),
                cached_tokens=draws.maybe(0),
                env_wait_ns=draws.maybe(draws.random.randrange(100 * MS)),
            )
        )
        started_ns = finished_ns
    return rows


def _deliveries(draws: _Draws, samples: int) -> list[Row]:
    rows: list[Row] = []
    for _ in range(samples):
        # Some are delivered twice, some never, and some were not recorded.
        outcome, taken_ns = draws.random.choice(OUTCOMES), draws.time_ns()
        step = draws.maybe(draws.random.randrange(STEPS)) if outcome == "trained" else None
        rows.append(
            delivery_row(
                f"s{draws.random.randrange(samples + 5)}",
                draws.random.choice(TRAINERS),
                outcome,
                taken_ns=taken_ns,
                queued_ns=draws.maybe(taken_ns - draws.random.randrange(500 * MS)),
                step=step,
                consumer_version=draws.maybe(step),
                reward=draws.maybe(draws.random.random()),
            )
        )
    return rows


def _engine_rows(draws: _Draws, name: str) -> list[Row]:
    rows: list[Row] = []
    start_ns = START_NS
    while start_ns < START_NS + LENGTH_NS:
        end_ns = start_ns + draws.random.randrange(1, 120 * MS)
        more = {"source": "sampled"} if name == "e2" else {}
        rows.append(
            engine_row(
                name,
                start_ns,
                end_ns,
                draws.random.randrange(end_ns - start_ns + 1),
                forward_passes=draws.random.randrange(1, 5),
                running=draws.random.randrange(33),
                waiting=draws.random.randrange(9),
                decode_tokens=draws.random.randrange(90),
                prefill_tokens=draws.random.choice((0, 0, 70)),
                kv_used_tokens=draws.maybe(draws.random.randrange(10_000)),
                preemptions=draws.maybe(draws.random.randrange(2)),
                **more,
            )
        )
        start_ns = end_ns + draws.random.choice((0, 0, 1, 300 * MS))
    return rows


def _train_row(draws: _Draws, name: str, step: int) -> Row:
    start_ns = START_NS + step * (LENGTH_NS // STEPS) + draws.random.randrange(100 * MS)
    end_ns = start_ns + draws.random.randrange(1, LENGTH_NS // STEPS)
    numbers = {each: draws.maybe(draws.random.random()) for each in ("loss", "entropy", "reward_mean", "grad_norm")}
    moments = [{"staleness": age, "tokens": 9, "sum_w": 9 + draws.random.random(), "sum_w2": 11.0} for age in range(3)]
    return train_row(name, start_ns, end_ns, step, samples=draws.maybe(8), tokens=900, importance=moments, **numbers)


def _updates(draws: _Draws) -> list[Row]:
    rows: list[Row] = []
    for version in range(1, STEPS):
        published_ns = START_NS + version * (LENGTH_NS // STEPS)
        rows.append(update_row("t0", published_ns, published_ns + 30 * MS, version, "publish"))
        for name in SAMPLERS:
            start_ns = published_ns + draws.random.randrange(-5 * MS, 300 * MS)
            kv = draws.maybe(draws.random.choice(("kept", "recomputed")))
            paused = draws.maybe(draws.random.random() < 0.5)
            rows.append(update_row(name, start_ns, start_ns + 20 * MS, version, "apply", paused=paused, kv=kv))
    return rows


def _activity(draws: _Draws, name: str) -> Row:
    kind = draws.random.choice(_ACTIVITIES)
    reason = draws.random.choice(("samples", "requests", "barrier")) if kind == "wait" else None
    return activity(name, *draws.span(700), kind, reason)
