"""A metric of a window is of its buckets, and over the whole run what the report says of the run."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlscope.alerts.metrics import BY_NAME, METRICS
from rlscope.alerts.offline import whole_timeline
from rlscope.alerts.series import MetricReading, Timeline
from rlscope.alerts.types import Rule, RuleSet, RuleWindow
from rlscope.analysis.ledger import IDLE_STATES, close_ledger
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
OF_THE_LEDGER = ("ledger", "worker_extents", "gpu_agreement")
EVERY = RuleSet(
    tuple(Rule(metric.name, metric.name, "above", 0.0, RuleWindow(S)) for metric in METRICS),
    interval_ns=S,
    warm_up_steps=0,
)


def whole(timeline: Timeline, name: str) -> MetricReading:
    return BY_NAME[name].series(timeline)(0, timeline.buckets)


def test_over_the_whole_run_staleness_and_shares_of_gpu_time_are_the_report_s() -> None:
    with open_run(TRACE) as run:
        asked = ("token_staleness", "staleness_histogram", "oldest_staleness", "version_sources")
        answers = {name: ask(run, name, standard_arguments(run)) for name in (*asked, *OF_THE_LEDGER)}
        staleness = summarize_staleness(answers, run.config.max_staleness)
        states = close_ledger(*(answers[name] for name in OF_THE_LEDGER)).states
        timeline = whole_timeline(run, EVERY)
    for statistic in ("mean", "p50", "p95", "p99", "max"):
        reported = getattr(staleness.tokens, statistic)
        assert whole(timeline, f"staleness.tokens.{statistic}").value == pytest.approx(reported, rel=1e-12)
    for role in ("trainer", "sampler"):
        own = [state for state in states if state.role == role]
        idle_ns = sum(state.gpu_ns for state in own if state.state in IDLE_STATES)
        assert whole(timeline, f"idle.{role}_ratio").value == idle_ns / sum(state.gpu_ns for state in own)


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
    # metric: values of the buckets that end at 10, 20 and 30 s, and of the whole run
    "staleness.tokens.mean": (0.0, 10 / 10, None, 10 / 20),
    "staleness.tokens.p50": (0, 0, None, 0),
    "staleness.tokens.p95": (0, 2, None, 2),
    "staleness.tokens.max": (0, 2, None, 2),
    "staleness.over_cap_ratio": (0.0, 0.5, None, 5 / 20),
    "idle.trainer_ratio": (0.5, 0.5, 0.5, 0.5),
    "idle.sampler_ratio": (0.0, 0.0, None, 0.0),
    "unattributed_ratio": (0.0, 2 / 22, 10 / 20, 12 / 72),
    "idle.longest_s": (5.0, 6.0, 10.0, 16.0),
    "weight_update.gpu_ratio": (3 / 30, 0.0, 0.0, 3 / 72),
    "dropped_stale_ratio": (20 / 40, None, None, 20 / 40),
    "queue.depth": (4.0, (4 * 2 + 6 * 8) / 10, 6.0, (4 * 10 + 6 * 18) / 28),
    "queue.used_ratio": (0.5, (4 * 2 + 6 * 8) / 80, 6 / 8, (4 * 10 + 6 * 18) / 28 / 8),
    "kv.used_ratio": (0.5, 1.0, None, (50 * 10 + 100 * 2) / 1200),
    "running.per_engine": (4.0, 8.0, None, (4 * 10 + 8 * 2) / 12),
    "waiting.requests": (1.0, 0.0, None, 10 / 12),
    "throughput.trained_tokens_per_s": (1.0, 1.0, 0.0, 20 / 30),
    "step.time_s": (None, 3.0, None, 3.0),
    "reward.mean": (None, 0.5, None, 0.5),
    "weight_update.duration_s": (None, 3.0, None, 3.0),
    "worker.silent_s": (0.0, 8.0, 18.0, 18.0),
    "rows.dropped_ratio": (3 / 21, 3 / 21, 3 / 21, 3 / 21),  # Eighteen rows are stored.
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_bucket_holds_what_ends_in_it_and_the_whole_run_what_its_buckets_hold(small: Timeline, name: str) -> None:
    series = BY_NAME[name].series(small)
    assert small.buckets == 3
    values = [series(first, after).value for first, after in ((0, 1), (1, 2), (2, 3), (0, 3))]
    assert values == [pytest.approx(value) if value is not None else None for value in EXPECTED[name]]


def test_the_evidence_is_the_tokens_the_steps_or_the_gpu_seconds_that_were_seen(small: Timeline) -> None:
    seen = {
        "staleness.tokens.mean": 20,
        "staleness.over_cap_ratio": 20,
        "dropped_stale_ratio": 40,
        "throughput.trained_tokens_per_s": 3,
        "unattributed_ratio": 72.0,
    }
    assert {name: whole(small, name).evidence for name in seen} == seen
    silence = BY_NAME["worker.silent_s"].series(small)
    assert [silence(0, 1), silence(2, 3)] == [MetricReading(0.0, 2, None), MetricReading(18.0, 2, "e0")]


def test_a_stretch_without_work_goes_on_over_the_edge_of_a_bucket_as_far_as_the_window(small: Timeline) -> None:
    series = BY_NAME["idle.longest_s"].series(small)
    assert series(0, 3) == MetricReading(16.0, 2, "t0"), "from the end of the last step at 14 s on"
    assert series(0, 2) == MetricReading(6.0, 2, "t0")
    assert series(1, 3) == MetricReading(16.0, 2, "t0")
    assert series(2, 3) == MetricReading(10.0, 2, "t0")


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
