"""A metric over the whole run is what the report says of the run; over a window it is its own buckets."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from rlscope.alerts.metrics import BY_NAME, METRICS
from rlscope.alerts.offline import whole_timeline
from rlscope.alerts.series import MetricReading, Timeline
from rlscope.alerts.types import Rule, RuleSet, RuleWindow
from rlscope.analysis.ledger import IDLE_STATES, close_ledger
from rlscope.analysis.result import Ledger, Staleness
from rlscope.analysis.staleness import summarize_staleness
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.questions import questions
from rlscope.trace.store import open_run
from tests.trace_folder import (
    activity,
    delivery_row,
    engine_row,
    queue_row,
    sample_row,
    train_row,
    update_row,
    worker,
    write_run,
)

S = 1_000_000_000
TRACE = Path(__file__).parents[2] / "sample_traces" / "overproduction"
EVERY = RuleSet(
    tuple(Rule(metric.name, metric.name, "above", 0.0, RuleWindow(S)) for metric in METRICS),
    interval_ns=S,
    warm_up_steps=0,
)


class Reported(NamedTuple):
    """The report's own figures, without its model, which no metric here asks."""

    ledger: Ledger
    staleness: Staleness
    answers: Mapping[str, pl.DataFrame]
    timeline: Timeline


ASKED = (
    "ledger", "worker_extents", "gpu_agreement", "token_staleness", "staleness_histogram", "oldest_staleness",
    "version_sources", "engine_speed", "delivery_outcomes", "training_steps", "weight_update_latency",
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded() -> Reported:
    with open_run(TRACE) as run:
        arguments = standard_arguments(run)
        answers = {name: ask(run, name, arguments) for name in ASKED}
        ledger = close_ledger(answers["ledger"], answers["worker_extents"], answers["gpu_agreement"])
        staleness = summarize_staleness(answers, run.config.max_staleness)
        return Reported(ledger, staleness, answers, whole_timeline(run, EVERY))


def whole(timeline: Timeline, name: str) -> MetricReading:
    return BY_NAME[name].series(timeline)(0, timeline.buckets)


def shares(reported: Reported, roles: tuple[str, ...], states: tuple[str, ...]) -> float:
    own = [state for state in reported.ledger.states if state.role in roles]
    return sum(state.gpu_ns for state in own if state.state in states) / sum(state.gpu_ns for state in own)


def by_time(frame: pl.DataFrame, value: str, weight: str) -> float:
    return (frame[value] * frame[weight]).sum() / frame[weight].sum()


def test_staleness_over_the_whole_run_is_the_reports(recorded: Reported) -> None:
    timeline = recorded.timeline
    tokens = recorded.staleness.tokens
    for statistic in ("p50", "p95", "p99", "max"):
        assert whole(timeline, f"staleness.tokens.{statistic}").value == getattr(tokens, statistic)
    trained = sum(count for _, count in tokens.histogram)
    assert whole(timeline, "staleness.tokens.mean") == MetricReading(pytest.approx(tokens.mean), trained)
    over = recorded.staleness.over_cap_tokens
    assert whole(timeline, "staleness.over_cap_ratio") == MetricReading(over / trained, trained)


def test_shares_of_gpu_seconds_over_the_whole_run_are_the_ledgers(recorded: Reported) -> None:
    timeline = recorded.timeline
    everyone = ("trainer", "sampler", "colocated")
    assert whole(timeline, "idle.trainer_ratio").value == shares(recorded, ("trainer",), IDLE_STATES)
    assert whole(timeline, "idle.sampler_ratio").value == shares(recorded, ("sampler",), IDLE_STATES)
    assert whole(timeline, "unattributed_ratio").value == shares(recorded, everyone, ("unattributed",))
    moving = ("publishing_weights", "transferring_weights", "applying_weights")
    waited = sum(state.gpu_ns for state in recorded.ledger.states if state.reason == "weights")
    share = shares(recorded, everyone, moving) + waited / recorded.ledger.total_gpu_ns
    assert whole(timeline, "weight_update.gpu_ratio").value == pytest.approx(share)
    assert whole(timeline, "unattributed_ratio").evidence == pytest.approx(recorded.ledger.total_gpu_s)


def test_engines_queues_and_outcomes_over_the_whole_run_are_the_reports(recorded: Reported) -> None:
    timeline = recorded.timeline
    speed = recorded.answers["engine_speed"]
    assert whole(timeline, "running.per_engine").value == pytest.approx(by_time(speed, "running_mean", "row_s"))
    assert whole(timeline, "waiting.requests").value == pytest.approx(by_time(speed, "waiting_mean", "row_s"))
    outcomes = recorded.answers["delivery_outcomes"]
    dropped = outcomes.filter(outcome="dropped_stale")["tokens"].sum()
    assert whole(timeline, "dropped_stale_ratio") == MetricReading(
        dropped / outcomes["tokens"].sum(), outcomes["tokens"].sum()
    )
    steps = recorded.answers["training_steps"]
    assert whole(timeline, "step.time_s").value == pytest.approx(steps["step_s"].mean())
    assert whole(timeline, "reward.mean").value == pytest.approx(steps["reward_mean"].mean())
    extents = recorded.answers["worker_extents"]
    rate = steps["response_tokens"].sum() / ((extents["end_ns"].max() - extents["start_ns"].min()) / 1e9)
    assert whole(timeline, "throughput.trained_tokens_per_s") == MetricReading(pytest.approx(rate), len(steps))
    updates = recorded.answers["weight_update_latency"]
    assert whole(timeline, "weight_update.duration_s").value == pytest.approx(updates["publish_to_applied_s"].mean())


def test_caches_and_queues_over_the_whole_run_are_as_full_as_the_report_draws_them(recorded: Reported) -> None:
    timeline = recorded.timeline
    # One bucket of the report's chart that holds the whole run, which has one engine and one queue.
    start_ns, end_ns = timeline.start_ns, timeline.end_ns
    with open_run(TRACE) as run:
        arguments = {**standard_arguments(run), "origin_ns": start_ns, "bucket_ns": 2 * (end_ns - start_ns)}
        (kv,) = ask(run, "kv_use", arguments).iter_rows(named=True)
        (queue,) = ask(run, "queue_depth", arguments).iter_rows(named=True)
    kv_ratio = kv["kv_used_mean_tokens"] / kv["kv_capacity_tokens"]
    assert whole(timeline, "kv.used_ratio").value == pytest.approx(kv_ratio)
    # The chart ends with the last look at the queue; a rule takes that to hold until the run ends.
    depth = whole(timeline, "queue.depth").value
    assert depth == pytest.approx(queue["depth_mean_samples"], rel=0.01)
    assert whole(timeline, "queue.used_ratio").value == pytest.approx(depth / queue["capacity_samples"])


def test_every_metric_names_a_question_that_there_is_and_is_listed_once() -> None:
    assert {metric.question for metric in METRICS} <= set(questions())
    assert len(BY_NAME) == len(METRICS)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """A trainer and an engine with some of everything, in buckets of ten seconds from 0 to 30 s."""
    folder = write_run(
        tmp_path_factory.mktemp("small"),
        [
            worker("t0", "trainer", 0, 30 * S, gpu_count=2, dropped={"samples": 3}),
            worker("e0", "sampler", 0, None, last_flush_ns=12 * S, kv_capacity_tokens=100),
        ],
        {"max_staleness": 1},
        activities=[
            activity("t0", 0, 5 * S, "wait", "samples"),
            activity("t0", 15 * S, 25 * S, "wait", "staleness_cap"),
        ],
        train_steps=[
            train_row("t0", 5 * S, 8 * S, 1, version_in=3),
            train_row("t0", 8 * S, 10 * S, 2, version_in=3, reward_mean=0.5),
            train_row("t0", 10 * S, 14 * S, 3, version_in=5),
        ],
        samples=[
            sample_row("a", "e0", [(3, 0, 10)]),
            sample_row("b", "e0", [(1, 0, 5), (3, 5, 10)]),
            sample_row("c", "e0", [(1, 0, 20)]),
        ],
        deliveries=[
            delivery_row("a", "t0", taken_ns=5 * S, step=1),
            delivery_row("b", "t0", taken_ns=8 * S, step=2),
            delivery_row("c", "t0", "dropped_stale", taken_ns=8 * S),
        ],
        engine_steps=[
            engine_row("e0", 0, 10 * S, running=4, waiting=1, kv_used_tokens=50),
            engine_row("e0", 10 * S, 12 * S, running=8, waiting=0, kv_used_tokens=100),
        ],
        queue_depths=[
            queue_row("t0", 2 * S, 4, capacity=8),
            queue_row("t0", 12 * S, 6, capacity=8),
            queue_row("t0", 0, 1, queue="tasks"),
        ],
        weight_updates=[
            update_row("t0", 8 * S, 9 * S, 4, "publish"),
            update_row("e0", 9 * S, 11 * S, 4),
        ],
    )  # fmt: skip
    with open_run(folder) as run:
        return whole_timeline(run, replace(EVERY, interval_ns=10 * S))


EXPECTED = {
    # metric: values of the buckets that end at 10, 20 and 30 s
    "staleness.tokens.mean": (0.0, 10 / 10, None),
    "staleness.tokens.p50": (0, 0, None),
    "staleness.tokens.max": (0, 2, None),
    "staleness.over_cap_ratio": (0.0, 0.5, None),
    "idle.trainer_ratio": (0.5, 0.5, 0.5),
    "idle.sampler_ratio": (0.0, 0.0, None),
    "unattributed_ratio": (0.0, 2 / 22, 10 / 20),
    "idle.longest_s": (5.0, 6.0, 10.0),
    "dropped_stale_ratio": (20 / 40, None, None),
    "queue.depth": (4.0, (4 * 2 + 6 * 8) / 10, 6.0),
    "queue.used_ratio": (0.5, (4 * 2 + 6 * 8) / 80, 6 / 8),
    "kv.used_ratio": (0.5, 1.0, None),
    "running.per_engine": (4.0, 8.0, None),
    "waiting.requests": (1.0, 0.0, None),
    "throughput.trained_tokens_per_s": (1.0, 1.0, 0.0),
    "step.time_s": (None, 3.0, None),
    "reward.mean": (None, 0.5, None),
    "weight_update.duration_s": (None, 3.0, None),
    "worker.silent_s": (0.0, 8.0, 18.0),
    "rows.dropped_ratio": (3 / 21, 3 / 21, 3 / 21),  # Eighteen rows are stored.
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_bucket_holds_what_ends_in_it(small: Timeline, name: str) -> None:
    series = BY_NAME[name].series(small)
    assert small.buckets == 3
    values = [series(bucket, bucket + 1).value for bucket in range(3)]
    assert values == [pytest.approx(value) if value is not None else None for value in EXPECTED[name]]


def test_the_silent_worker_is_named(small: Timeline) -> None:
    assert BY_NAME["worker.silent_s"].series(small)(2, 3) == MetricReading(18.0, 2, "e0")
    assert BY_NAME["worker.silent_s"].series(small)(0, 1) == MetricReading(0.0, 2, None)


def test_a_stretch_without_work_goes_on_over_the_edge_of_a_bucket_as_far_as_the_window(small: Timeline) -> None:
    series = BY_NAME["idle.longest_s"].series(small)
    assert series(0, 3) == MetricReading(16.0, 2, "t0"), "from the end of the last step at 14 s on"
    assert series(0, 2) == MetricReading(6.0, 2, "t0")
    assert series(1, 3) == MetricReading(16.0, 2, "t0")
    assert series(2, 3) == MetricReading(10.0, 2, "t0")


def test_the_longest_stretch_without_work_over_the_whole_run_is_the_reports(recorded: Reported) -> None:
    with open_run(TRACE) as run:
        longest = ask(run, "idle_stretches", standard_arguments(run)).row(0, named=True)
    assert whole(recorded.timeline, "idle.longest_s") == MetricReading(longest["idle_s"], 2, longest["worker_id"])


def test_the_longest_of_several_workers_counts_though_another_began_first(tmp_path: Path) -> None:
    waits = [
        activity("t0", 0, 30 * S, "eval"), activity("t1", 0, 30 * S, "eval"),
        activity("t0", 1 * S, 4 * S, "wait", "samples"), activity("t1", 2 * S, 28 * S, "wait", "samples"),
        activity("t0", 5 * S, 6 * S, "wait", "samples"),
    ]  # fmt: skip
    write_run(tmp_path / "run", [worker("t0", stop_ns=30 * S), worker("t1", stop_ns=30 * S)], activities=waits)
    with open_run(tmp_path / "run") as run:
        timeline = whole_timeline(run, replace(EVERY, interval_ns=10 * S))
    series = BY_NAME["idle.longest_s"].series(timeline)
    assert series(0, 3) == MetricReading(26.0, 2, "t1")
    assert series(1, 2) == MetricReading(10.0, 2, "t1")


def test_workers_that_always_worked_were_idle_for_0_s(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [worker("t0", stop_ns=S)], activities=[activity("t0", 0, S, "eval")])
    with open_run(tmp_path / "run") as run:
        series = BY_NAME["idle.longest_s"].series(whole_timeline(run, EVERY))
    assert series(0, 1) == MetricReading(0.0, 1, None)


def test_what_is_overdue_is_told_in_usual_periods_and_not_before_there_are_three(tmp_path: Path) -> None:
    ends_s = (2, 4, 6, 10, 12)
    write_run(
        tmp_path / "run",
        [worker("t0", "trainer", 0, 40 * S)],
        train_steps=[train_row("t0", (end - 1) * S, end * S, step) for step, end in enumerate(ends_s)],
    )
    with open_run(tmp_path / "run") as run:
        timeline = whole_timeline(run, replace(EVERY, interval_ns=6 * S))
    series = BY_NAME["step.overdue_periods"].series(timeline)
    # At 6 s two steps have ended before the tick, at 12 s four; the run ends at 40 s, the last tick is at 42 s.
    assert series(0, 1) == MetricReading(None, 1)
    assert series(0, 2) == MetricReading(2 / 2, 3)
    assert series(0, 3) == MetricReading(6 / 2, 4)
    assert series(0, 7) == MetricReading(28 / 2, 4)
