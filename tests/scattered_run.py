"""Runs of random rows in every table: samples that resume on other engines, are delivered twice or never, waits that
overlap, rows outside their worker's life, and values that are not recorded.
"""

import random
from collections.abc import Iterator
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
STEPS: Final = 12
STEP_MS: Final = 1_700
LENGTH_MS: Final = STEPS * STEP_MS
SAMPLERS: Final = ("e0", "e1", "e2")
TRAINERS: Final = ("t0", "t1")
OUTCOMES: Final = ("trained", "trained", "trained", "dropped_stale", "filtered", "abandoned")
_ACTIVITIES: Final = ("wait", "wait", "generate", "weight_update", "checkpoint", "eval", "startup", "unheard_of")


class _Draws(random.Random):
    """Random values of a run."""

    def maybe(self, value: Any) -> Any:
        return value if self.random() < 0.8 else None

    def up_to(self, ms: int) -> int:
        """Nanoseconds below so many milliseconds."""
        return self.randrange(ms * MS)

    def span(self, longest_ms: int) -> tuple[int, int]:
        start_ns = self.time_ns()
        return start_ns, start_ns + 1 + self.up_to(longest_ms)

    def time_ns(self) -> int:
        return START_NS + self.up_to(LENGTH_MS)


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
    tables: dict[str, list[Row]] = {
        "samples": [row for number in range(samples) for row in _segments(draws, number)],
        "deliveries": [_delivery(draws, samples) for _ in range(samples)],
        "engine_steps": [row for name in SAMPLERS for row in _engine_rows(draws, name)],
        "train_steps": [_train_row(draws, name, step) for name in TRAINERS for step in range(STEPS)],
        "weight_updates": [row for version in range(1, STEPS) for row in _updates(draws, version)],
        "activities": [_activity(draws, draws.choice(names)) for _ in range(120)],
        "queue_depths": [queue_row("c0", draws.time_ns(), draws.randrange(50)) for _ in range(40)],
        "gpu_samples": [
            gpu_row(name, START_NS + tick * 250 * MS, draws.maybe(draws.random()))
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
    return [_worker(draws, name) for name in names], tables


def _worker(draws: _Draws, name: str) -> Row:
    role = {"e": "sampler", "t": "trainer", "c": "controller"}[name[0]]
    end_ns = START_NS + LENGTH_MS * MS - draws.up_to(2_000)
    more = {
        "gpu_count": 0 if role == "controller" else draws.choice((1, 4)),
        "gpu_ids": [f"GPU-{name[1]}"],
        "host": "host-b" if role == "sampler" else "host-a",
        "kv_capacity_tokens": draws.maybe(10_000),
        "last_flush_ns": end_ns,
    }
    return worker(name, role, START_NS, None if name == "e1" else end_ns, max_running=32, **more)


def _segments(draws: _Draws, number: int) -> Iterator[Row]:
    group_id, started_ns = draws.maybe(f"g{number // 4}"), draws.time_ns()
    for segment in range(draws.choice((1, 1, 1, 2, 3))):
        version, tokens = draws.randrange(STEPS), draws.randrange(60)
        cut, finished_ns = draws.randrange(tokens + 1), started_ns + 1 + draws.up_to(900)
        runs = [run for run in ((version, 0, cut), (version + 1, cut, tokens)) if run[1] < run[2]]
        times = {
            "submitted_ns": draws.maybe(started_ns - draws.up_to(50)),
            "started_ns": draws.maybe(started_ns),
            "finished_ns": finished_ns,
            "env_wait_ns": draws.maybe(draws.up_to(100)),
        }
        facts = {
            "prompt_tokens": draws.randrange(1, 100),
            "version_source": draws.choice(("engine", "segment", "admission", "unheard_of")),
            "finish_reason": draws.maybe(draws.choice(("stop", "length", "abort"))),
            "preemptions": draws.maybe(draws.randrange(3)),
            "cached_tokens": draws.maybe(0),
        }
        engine = draws.choice(SAMPLERS)
        yield sample_row(f"s{number}", engine, runs, segment=segment, group_id=group_id, **times, **facts)
        started_ns = finished_ns


def _delivery(draws: _Draws, samples: int) -> Row:
    """Some samples are delivered twice, some never, and some were not recorded."""
    sample_id, outcome, taken_ns = f"s{draws.randrange(samples + 5)}", draws.choice(OUTCOMES), draws.time_ns()
    step = draws.maybe(draws.randrange(STEPS)) if outcome == "trained" else None
    more = {
        "queued_ns": draws.maybe(taken_ns - draws.up_to(500)),
        "step": step,
        "consumer_version": draws.maybe(step),
        "reward": draws.maybe(draws.random()),
    }
    return delivery_row(sample_id, draws.choice(TRAINERS), outcome, taken_ns=taken_ns, **more)


def _engine_rows(draws: _Draws, name: str) -> Iterator[Row]:
    start_ns = START_NS
    while start_ns < START_NS + LENGTH_MS * MS:
        end_ns = start_ns + 1 + draws.up_to(120)
        more = {
            "forward_passes": draws.randrange(1, 5),
            "running": draws.randrange(33),
            "waiting": draws.randrange(9),
            "decode_tokens": draws.randrange(90),
            "prefill_tokens": draws.choice((0, 0, 70)),
            "kv_used_tokens": draws.maybe(draws.randrange(10_000)),
            "preemptions": draws.maybe(draws.randrange(2)),
        } | ({"source": "sampled"} if name == "e2" else {})
        yield engine_row(name, start_ns, end_ns, draws.randrange(end_ns - start_ns + 1), **more)
        start_ns = end_ns + draws.choice((0, 0, 1, 300 * MS))


def _train_row(draws: _Draws, name: str, step: int) -> Row:
    start_ns = START_NS + step * STEP_MS * MS + draws.up_to(100)
    numbers = {each: draws.maybe(draws.random()) for each in ("loss", "entropy", "reward_mean", "grad_norm")}
    moments = [{"staleness": age, "tokens": 9, "sum_w": 9 + draws.random(), "sum_w2": 11.0} for age in range(3)]
    more = {"samples": draws.maybe(8), "tokens": 900, "importance": moments, **numbers}
    return train_row(name, start_ns, start_ns + 1 + draws.up_to(STEP_MS), step, **more)


def _updates(draws: _Draws, version: int) -> Iterator[Row]:
    published_ns = START_NS + version * STEP_MS * MS
    yield update_row("t0", published_ns, published_ns + 30 * MS, version, "publish")
    for name in SAMPLERS:
        start_ns = published_ns + draws.up_to(305) - 5 * MS
        more = {"paused": draws.maybe(draws.random() < 0.5), "kv": draws.maybe(draws.choice(("kept", "recomputed")))}
        yield update_row(name, start_ns, start_ns + 20 * MS, version, "apply", **more)


def _activity(draws: _Draws, name: str) -> Row:
    kind = draws.choice(_ACTIVITIES)
    reason = draws.choice(("samples", "requests", "barrier")) if kind == "wait" else None
    return activity(name, *draws.span(700), kind, reason)
