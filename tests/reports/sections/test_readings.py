"""Captions and frames that the facts of a run choose: what they say on both sides of each threshold."""

import json
from dataclasses import replace

import altair as alt
import polars as pl
import pytest

from rlscope.analysis.result import SteadyWindow, Throughput
from rlscope.reports.blocks import Facts, Table
from rlscope.reports.card import per_gpu_facts
from rlscope.reports.charts.encoding import shown_from_s, spec
from rlscope.reports.figure import figures_in
from rlscope.reports.sections.engines import batch_sentence, engine_table, is_flat
from rlscope.reports.sections.queue import depth_sentence, parts_sentence, update_parts
from rlscope.reports.sections.staleness import never_stale
from rlscope.reports.sections.training import metrics_frame, phases_frame, throughput_section
from rlscope.reports.text.ledger import steady_state
from tests.reports.analysis_fixture import NO_ROWS, STARTED_NS, empty_analysis, frame, full_analysis

SECOND = 10**9


WINDOW = SteadyWindow(10, 110, 1, 5)


@pytest.mark.parametrize(("below", "limit", "flat"), [(1, 32, True), (2, 32, False), (0, None, False), (0, 33, False)])
def test_a_line_is_flat_if_engines_run_their_limit_for_99_percent_of_the_steady_state(below, limit, flat):
    running = [*[31.35] * below, *[31.36] * (100 - below)]
    # Start-up is before the stretch, and engines that have nothing left to do are after it.
    rows = pl.DataFrame({"bucket_start_ns": [9, *range(10, 110), 110], "running_mean": [0.0, *running, 0.0]})
    assert is_flat(rows, limit, WINDOW) == flat


def test_a_chart_has_all_its_rows_whatever_altair_is_set_to():
    rows = pl.DataFrame({"x": range(5_001)})
    chart = alt.Chart(rows).mark_point().encode(x="x:Q")
    with alt.data_transformers.enable("csv"):
        drawn = json.loads(spec(chart, "points", "", full_analysis().run))
        assert alt.data_transformers.active == "csv"
    (found,) = drawn["datasets"].values()
    assert len(found["x"] if isinstance(found, dict) else found) == 5_001


def said_of_batch(running, waiting=None, used=None, limit=None, efficient=None):
    """The sentence on engines that run and hold back so many requests, with a KV cache of 1,000 tokens."""
    frames = {"batch_size": ("running_mean", running), "waiting_requests": ("waiting_mean", waiting)}
    known = {name: pl.DataFrame({column: [mean]}) for name, (column, mean) in frames.items() if mean is not None}
    answers = {**NO_ROWS, **known}
    if used is not None:
        answers["kv_use"] = pl.DataFrame({"kv_used_mean_tokens": [0.0, used], "kv_capacity_tokens": [1_000] * 2})
    return batch_sentence(answers, limit, efficient, None)


@pytest.mark.parametrize(
    ("running", "limit", "efficient", "said"),
    [
        (30.4, 32, 29, "An engine runs 30.4 requests on average, at its limit of 32."),
        (30.3, 32, None, "An engine runs 30.3 requests on average."),
        (30.3, 32, 29, "An engine runs 30.3 requests on average, at or above the smallest efficient batch of 29."),
        (28.0, None, 29, "An engine runs 28 requests on average, below the smallest efficient batch of 29."),
    ],
)
def test_the_mean_batch_is_set_against_its_limit_or_the_efficient_one(running, limit, efficient, said):
    assert said_of_batch(running, None, None, limit, efficient) == said
    assert batch_sentence(NO_ROWS, limit, efficient, None) == ""


@pytest.mark.parametrize(
    ("waiting", "used", "limit", "said"),
    [
        (3.5, 900.0, 8, "3.5 more wait. The KV cache is at most 90.0% full: more requests would need more memory"),
        (3.5, 899.0, 8, "3.5 more wait. The KV cache is at most 89.9% full: the limit holds requests back"),
        (3.5, 899.0, None, "is at most 89.9% full: memory does not hold requests back."),
        (0.0, 899.0, 8, "none waits. The KV cache is at most 89.9% full: memory does not hold requests back."),
    ],
)
def test_what_holds_requests_back_is_read_from_the_cache_and_the_limit(waiting, used, limit, said):
    assert said in said_of_batch(8.0, waiting, used, limit)


@pytest.mark.parametrize(("median", "said"), [(0.03, "less than 1 of 100"), (11.0, "less than 11 of 100")])
def test_the_depth_of_a_queue_is_its_median(median, said):
    depths = pl.DataFrame({"depth_mean_samples": [median] * 3, "capacity_samples": [100] * 3})
    assert depth_sentence(depths) == f"Half of the time it holds {said} samples."
    assert depth_sentence(depths.clear()) == ""


@pytest.mark.parametrize(("start_s", "shown_s"), [(63.0, 0.0), (64.0, 64.0)])
def test_charts_over_time_fold_a_start_up_of_more_than_5_percent(start_s, shown_s):
    run = replace(full_analysis().run, duration_s=1_260.0)
    window = SteadyWindow(STARTED_NS + round(start_s * SECOND), STARTED_NS + 1_000 * SECOND, 1, 9)
    assert shown_from_s(replace(run, window=window)) == shown_s
    assert shown_from_s(replace(run, window=None)) == 0.0


def test_a_step_is_divided_into_phases_and_what_none_of_them_covers():
    costs = frame("step trainer_gpus train_gpu_s logprobs_gpu_s wait_gpu_s publish_gpu_s other_gpu_s\n"
                  "1    2            2.0         0.0            9.0        0.0           0.0\n"
                  "2    2            4.0         1.0            2.0        1.0           0.0")  # fmt: skip
    steps = frame("step step_s\n1 null\n2 5.0")
    run = replace(full_analysis().run, window=SteadyWindow(0, 1, 2, 2))
    rows = phases_frame({"trainer_steps": costs, "training_steps": steps}, run).drop("step_s").rows(named=True)
    assert rows == [
        {"step": 2, "train_s": 2.0, "logprobs_s": 0.5, "wait_s": 1.0, "publish_s": 0.5, "other_s": 0.0, "rest_s": 1.0}
    ]


def test_gpu_hours_count_every_worker_from_its_start_and_unreported_metrics_have_no_band():
    steps = pl.DataFrame(
        {"step": [1, 2], "end_ns": [3_600 * SECOND, 7_200 * SECOND], "loss": [1.0, 0.5], "entropy": [None, None]}
    )
    extents = pl.DataFrame({"start_ns": [0, 3_600 * SECOND], "end_ns": [9_999 * SECOND] * 2, "gpu_count": [1, 4]})
    made = metrics_frame({**NO_ROWS, "training_metrics": steps, "worker_extents": extents})
    assert made.rows(named=True) == [
        {"step": 1, "gpu_hours": 1.0, "loss": 1.0},
        {"step": 2, "gpu_hours": 6.0, "loss": 0.5},
    ]
    assert metrics_frame({**NO_ROWS, "training_metrics": steps.drop("loss")}) is None


def test_a_run_whose_workers_own_no_gpu_has_no_gpu_hours():
    steps = frame("step end_ns loss\n1 9 1.0")
    extents = pl.DataFrame({"start_ns": [0], "end_ns": [9], "gpu_count": [0]})
    made = metrics_frame({**NO_ROWS, "training_metrics": steps, "worker_extents": extents})
    assert made["gpu_hours"].to_list() == [None]


def test_staleness_of_steps_that_no_trainer_reported_has_no_band():
    steps, ages = frame("step end_ns loss\n1 9 1.0"), frame("step staleness_mean staleness_p95\n1001 2.0 3.0")
    made = metrics_frame({**NO_ROWS, "training_metrics": steps, "token_staleness_by_step": ages})
    assert made.columns == ["step", "gpu_hours", "loss"]


@pytest.mark.parametrize(
    ("truncated", "bands"), [(1, ["reward of responses that finished", "share of truncated responses"]), (0, [])]
)
def test_truncation_has_bands_beside_the_reward_if_any_response_was_cut(truncated, bands):
    steps = frame("step end_ns reward_mean\n1 1 0.5\n2 2 0.6")
    cut = frame(f"step truncated_ratio finished_reward_mean\n2 {0.25 * truncated} 0.7")
    made = metrics_frame({**NO_ROWS, "training_metrics": steps, "truncation_by_step": cut})
    assert made.columns == ["step", "gpu_hours", "reward", *bands]


def test_a_million_trained_tokens_have_a_price_where_the_run_has_one():
    analysis = replace(full_analysis(), throughput=Throughput(None, 1_000.0, None))
    run = replace(analysis.run, total_gpus=36, gpu_hour_price=None)
    assert [fact.value for fact in per_gpu_facts(replace(analysis, run=run))] == ["27.8 tokens/s", "10"]
    priced = per_gpu_facts(replace(analysis, run=replace(run, gpu_hour_price=2.5, currency="EUR")))[1]
    assert (priced.name, priced.note) == ("Price of 1M trained tokens", "10 GPU-hours, steady state")
    assert "25" in priced.value
    assert per_gpu_facts(empty_analysis()) == []


def test_the_steady_bars_of_a_role_add_up_and_split_generation_by_what_was_dropped():
    analysis = full_analysis()
    outcomes = pl.DataFrame({"outcome": ["trained", "dropped_stale"], "tokens": [25, 75]})
    trainer, sampler = steady_state(
        replace(analysis, answers={**analysis.answers, "judged_outcomes": outcomes})
    ).block.roles
    assert sum(part.share_ratio for part in sampler.parts) == pytest.approx(1.0)
    shares = {part.state.name: part.share_ratio for part in sampler.parts}
    made = sum(shares[name] for name in ("decoding", "mixed_passes", "prefilling", "between_passes"))
    assert shares["discarded"] == pytest.approx(3.0 * made)
    assert "discarded" not in {part.state.name for part in trainer.parts} and "startup" not in shares
    assert steady_state(empty_analysis()) is None


@pytest.mark.parametrize(
    ("stalenesses", "said"),
    [
        ([0], "Staleness is 0 for all 5 tokens of known version: the trainer had published nothing newer."),
        ([0, 1], ""),
        ([1], ""),
        ([-1], ""),
        ([], ""),
    ],
)
def test_staleness_that_is_always_0_is_said_instead_of_drawn(stalenesses, said):
    rows = pl.DataFrame({"staleness": stalenesses, "tokens": [5] * len(stalenesses)}, schema_overrides={
        "staleness": pl.Int64, "tokens": pl.Int64})  # fmt: skip
    assert never_stale(rows) == said


def test_rates_that_are_known_by_step_alone_are_not_drawn_as_zeros():
    analysis = full_analysis()
    (rates, *_) = figures_in(throughput_section(analysis))
    assert rates.spec
    counted = replace(analysis, throughput=Throughput(1_000.0, 1_000.0, None, counted_tokens=7))
    section = throughput_section(counted)
    (rates,) = [drawn for drawn in figures_in(section) if drawn.anchor == rates.anchor]
    assert rates.spec is None and "not known over time" in rates.figure.empty
    (facts,) = [block.facts for block in section if isinstance(block, Facts)]
    assert [fact.note for fact in facts if fact.value == "no data"] == ["", ""]


def engines_of(rates: list[float]) -> dict[str, pl.DataFrame]:
    """Engines of 100 s that have requests for 80 s of it; of the first the KV cache, updates and samples are known."""
    names = [f"e{number}" for number in range(len(rates))]
    speeds = {"worker_id": names, "tokens_per_s": rates, "running_mean": 8.0, "waiting_mean": 0.5, "row_s": 80.0}
    return {
        "engine_speed": pl.DataFrame(speeds),
        "worker_extents": pl.DataFrame({"worker_id": names, "start_ns": 0, "end_ns": 100 * 10**9}),
        "kv_use": frame('worker_id kv_used_mean_tokens kv_capacity_tokens preemptions\n"e0" 30 100 1\n"e0" 60 100 2'),
        "weight_update_latency": pl.DataFrame({"worker_id": "e0", "publish_to_applied_s": [1.0, None, 2.0]}),
        "engine_deliveries": pl.DataFrame({"worker_id": "e0", "samples": [8], "dropped": [1]}),
    }


def test_engines_are_listed_from_the_slowest_on_against_their_median() -> None:
    (table,) = engine_table(engines_of([100.0, 50.0, 200.0]))
    assert [tuple(row) for row in table.rows] == [
        ("e1", "50 tokens/s", "−50.0%", "8", "0.5", "no data", "no data", "80.0%", "no data", "no data"),
        ("e0", "100 tokens/s", "0%", "8", "0.5", "60.0%", "3", "80.0%", "1.5 s", "12.5%"),
        ("e2", "200 tokens/s", "+100%", "8", "0.5", "no data", "no data", "80.0%", "no data", "no data"),
    ]


MORE = "The 12 slowest of 13 engines."


@pytest.mark.parametrize(("count", "listed"), [(0, []), (1, []), (2, [2]), (12, [12]), (13, [12, MORE])])
def test_two_to_twelve_engines_are_listed_and_of_more_the_slowest(count: int, listed: list[int | str]) -> None:
    blocks = engine_table(engines_of([100.0 + number for number in range(count)]))
    assert [len(block.rows) if isinstance(block, Table) else block.text for block in blocks] == listed


def part(phase: str, median_s: float, halves_s: tuple[float, float] = (1.0, 1.0), **more: int):
    """A row of weight_update_parts: of eight versions, if nothing else is said."""
    halves = dict(zip(("first_half_s", "second_half_s"), halves_s, strict=True))
    row = {"phase": phase, "versions": 8, "median_s": median_s, "longest_s": 9.0, "bytes": None}
    return {**row, **halves, **more}


def said_of(*rows) -> str:
    return parts_sentence({row["phase"]: row for row in rows})


def test_the_parts_of_an_update_are_listed_between_publication_and_application() -> None:
    rows = [part("apply", 4.0), part("drain", 1.0, (0.5, 2.0)), part("publish", 5.0), part("transfer", 3.0)]
    (fold,) = update_parts(pl.DataFrame(rows))
    _, table = fold.blocks
    assert [tuple(row) for row in table.rows] == [
        ("publication, whole, on the trainer", "5 s", "1 s", "1 s", "9 s"),
        ("drain, until the engines take weights", "1 s", "500 ms", "2 s", "9 s"),
        ("transfer", "3 s", "1 s", "1 s", "9 s"),
        ("application, whole, on an engine", "4 s", "1 s", "1 s", "9 s"),
    ]
    assert update_parts(pl.DataFrame(rows[::2])) == [], "no part of an update"


def test_the_longest_part_is_named_with_what_shortens_it() -> None:
    said = said_of(part("publish", 5.0), part("drain", 3.0), part("transfer", 2.0))
    assert said == (
        "The longest recorded part is the drain: 3 s of 5 s per version. To shorten it, load weights while requests "
        "stay in the engines, or abort and continue them."
    )
    assert said_of(part("resume", 3.0)).startswith("The longest recorded part is the resumption: 3 s per version. ")


@pytest.mark.parametrize(
    ("halves_s", "versions", "grew"),
    [
        ((1.0, 1.5), 8, True),
        ((1.0, 1.49), 8, False),
        ((1.0, 1.5), 7, False),
        ((0.125, 0.2265625), 8, True),
        ((0.125, 0.21875), 8, False),
    ],
)
def test_a_part_that_takes_half_as_long_again_in_the_second_half_has_grown(
    halves_s: tuple[float, float], versions: int, grew: bool
) -> None:
    said = said_of(part("drain", 1.0, halves_s, versions=versions))
    assert ("The drain grew from" in said) == grew


@pytest.mark.parametrize(("seconds", "size_bytes", "slow"), [(1.7, 60e9, True), (1.69, 60e9, False), (99, 9e8, False)])
def test_a_transfer_is_slow_from_twice_the_published_time(seconds: float, size_bytes: float, slow: bool) -> None:
    said = said_of(part("transfer", seconds, bytes=int(size_bytes)))
    told = "A transfer of 60 GB takes 1.7 s; the fastest published transfers of this size take about 850 ms."
    assert (told in said) == slow
