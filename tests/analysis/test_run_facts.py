"""Who ran and how much came of it, where a worker was started again and where deliveries name no step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from rlscope.analysis.result import AnalysisResult, SteadyWindow
from rlscope.analysis.run_facts import most_gpus, window_reason
from rlscope.model.forecast.result import NoModelResult
from rlscope.pipeline import analyze
from rlscope.trace.query import bucket_count, make_grid
from rlscope.trace.store import open_run
from tests.reports.analysis_fixture import empty_analysis
from tests.trace_folder import delivery_row, sample_row, train_row, worker, write_run

pytestmark = pytest.mark.usefixtures("no_model")
SECOND = 10**9


@pytest.mark.parametrize(("value", "number"), [(32, 32), (True, None), ("32", None), (32.0, None)])
def test_a_setting_that_is_no_whole_number_is_no_limit(value: object, number: int | None) -> None:
    facts = replace(empty_analysis().run, settings={"max_running": value})
    assert (facts.integer_setting("max_running"), facts.integer_setting("max_staleness")) == (number, None)


def test_a_worker_that_is_started_again_owns_its_gpus_once():
    """Four GPUs whose worker starts again at 10, and two workers of two at once at the end."""
    extents = pl.DataFrame({"start_ns": [0, 10, 0, 29], "end_ns": [10, 30, 30, 30], "gpu_count": [4, 4, 2, 2]})
    assert most_gpus(extents) == 8


def delivered(
    folder: Path, step_of: Callable[[int], int | None] = lambda at: at, tokens: int = 5, repeated: int = 0
) -> AnalysisResult:
    """Of thirty seconds, in each of which a step trains on its sample; the first ones are trained on again."""
    steps = range(30)
    uses = [*((at, at) for at in steps), *((at, at + 1) for at in range(repeated))]
    run = write_run(
        folder,
        [worker("t", "trainer", 0, 30 * SECOND), worker("e", "sampler", 0, 30 * SECOND)],
        train_steps=[train_row("t", at * SECOND, (at + 1) * SECOND, at) for at in steps],
        samples=[sample_row(f"s{at}", "e", [(0, 0, tokens)] if tokens else []) for at in steps],
        deliveries=[delivery_row(f"s{at}", "t", step=step_of(step), consumer_version=0) for at, step in uses],
    )
    return analyze(run, also_ask=())


@pytest.mark.parametrize(("step_of", "steady_tokens_per_s"), [(lambda at: at, 5.0), (lambda at: None, None)])
def test_deliveries_that_name_no_step_leave_the_steady_rate_unknown(
    tmp_path: Path, step_of: Callable[[int], int | None], steady_tokens_per_s: float | None
) -> None:
    throughput = delivered(tmp_path, step_of).throughput
    assert throughput.steady_tokens_per_s == steady_tokens_per_s
    assert throughput.achieved_tokens_per_s == 5.0


@pytest.mark.parametrize(("repeated", "is_refused"), [(3, False), (4, True)])
def test_a_run_whose_steps_train_on_samples_again_has_no_model_and_says_why(
    tmp_path: Path, repeated: int, is_refused: bool
) -> None:
    """A sample is generated once: of 30 that are trained on, 3 may be repeated, as by a run that was resumed."""
    model = delivered(tmp_path, repeated=repeated).model
    assert isinstance(model, NoModelResult)
    assert ("170 tokens were trained and 150 tokens generated" in model.reason) == is_refused


def test_trained_samples_without_a_token_leave_the_rates_unknown(tmp_path: Path) -> None:
    analysis = delivered(tmp_path, tokens=0)
    rates = analysis.throughput
    assert (analysis.run.samples_trained, analysis.run.tokens_trained) == (30, None)
    assert (rates.steady_tokens_per_s, rates.achieved_tokens_per_s, rates.generated_tokens_per_s) == (None, None, None)
    assert any(gap.startswith("samples: 30 rows have no tokens") for gap in analysis.data_quality.gaps)


@pytest.mark.parametrize(("again", "window"), [(11, (31, 40)), (10, (1, 29))])
def test_the_steady_state_is_of_one_start_of_the_run(tmp_path: Path, again: int, window: tuple[int, int]) -> None:
    """The run was down for an hour. Ten step times are needed, and the first step of a start has none."""
    at_s = [*range(30), *range(3600, 3600 + again)]
    run = write_run(
        tmp_path,
        [
            worker("t", "trainer", 0, 30 * SECOND),
            worker("t.r1", "trainer", 3600 * SECOND, (3600 + again) * SECOND),
        ],
        train_steps=[
            train_row("t" if step < 30 else "t.r1", at * SECOND + 1, (at + 1) * SECOND, step)
            for step, at in enumerate(at_s)
        ],
    )
    found = analyze(run, also_ask=()).run.window
    assert (found.first_step, found.last_step) == window
    assert found.end_ns - found.start_ns == (found.last_step - found.first_step + 1) * SECOND


@pytest.mark.parametrize(
    ("from_ns", "to_ns"), [(0, 1000 * SECOND), (7 * SECOND, 900 * SECOND), (950 * SECOND, 951 * SECOND)]
)
def test_the_stretch_that_is_judged_is_a_whole_number_of_buckets(tmp_path: Path, from_ns: int, to_ns: int) -> None:
    write_run(tmp_path, [worker("t", "trainer", 0, 1000 * SECOND)])
    with open_run(tmp_path) as run:
        grid = make_grid(run, from_ns, to_ns)
    assert (from_ns - grid.origin_ns) % grid.bucket_ns == 0
    assert grid.origin_ns <= 0
    buckets = round((to_ns - from_ns) / grid.bucket_ns)
    assert abs(buckets * grid.bucket_ns - (to_ns - from_ns)) <= 16 * buckets


@pytest.mark.parametrize(("workers", "buckets"), [(0, 240), (250, 240), (500, 120), (1_000, 60), (10_000, 60)])
def test_many_workers_have_fewer_buckets_each(workers: int, buckets: int) -> None:
    assert bucket_count(workers) == buckets


@pytest.mark.parametrize(("tokens", "rate", "counted"), [(None, None, None), (4, 4.0, 120)])
def test_without_recorded_deliveries_rates_count_what_the_trainer_counts(
    tmp_path: Path, tokens: int | None, rate: float | None, counted: int | None
) -> None:
    steps = [train_row("t", at * SECOND, (at + 1) * SECOND, at, tokens=tokens) for at in range(30)]
    run = write_run(tmp_path, [worker("t", "trainer", 0, 30 * SECOND)], train_steps=steps)
    analysis = analyze(run, also_ask=())
    throughput = analysis.throughput
    assert (throughput.achieved_tokens_per_s, throughput.steady_tokens_per_s) == (rate, rate)
    assert (throughput.counted_tokens, analysis.run.tokens_trained) == (counted, None)


def test_steps_that_an_export_left_out_are_not_counted_in_the_steady_stretch() -> None:
    kept = pl.Series("step", range(1, 1000, 2))
    window = SteadyWindow(start_ns=0, end_ns=1, first_step=43, last_step=999)
    assert window_reason(window, kept).startswith("the latest stretch with a stable step time: 479 of 500 steps")
