"""Runs that were read from logs: compared step by step, with what the logs do not say left out instead of invented."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlscope
from rlscope.comparison.attribution import setting_changes
from rlscope.comparison.differences import differences_of
from rlscope.comparison.facts import ComparedRun, counting_prompts, one_sided_settings
from rlscope.comparison.runs import compare_runs
from rlscope.comparison.warnings import CompareWarningKind
from rlscope.reports.text.comparison import compared_runs
from rlscope.trace.imported import Imported
from tests.comparison.made_runs import made_run

LOG = Path(__file__).parents[2] / "sample_traces" / "imported" / "verl_console.log"
FROM_A_LOG = Imported(framework="verl", carriers=("console",), files=(), clock="relative")


def imported(**more: object) -> ComparedRun:
    run = made_run(**more)
    return replace(run, data_quality=replace(run.data_quality, imported=FROM_A_LOG))


def without(run: ComparedRun, *columns: str) -> ComparedRun:
    return replace(run, table=replace(run.table, **dict.fromkeys(columns)))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> rlscope.Comparison:
    return rlscope.compare(LOG, shutil.copy(LOG, tmp_path_factory.mktemp("logs") / "tuesday.log"))


def test_two_logs_are_compared_by_their_steps_under_their_own_names(compared: rlscope.Comparison) -> None:
    (pair,) = compared.pairs
    assert [run.name for run in compared.runs] == ["verl_console", "tuesday"]
    assert pair.differences.basis == "steady"
    rate = pair.differences.row("tokens_per_s")
    assert rate.change == 0.0 and rate.low is not None and not rate.is_significant
    assert [each.kind for each in pair.warnings] == [CompareWarningKind.COUNTS_PROMPTS]
    updates = pair.differences.row("update_s")
    assert (updates.before, updates.after) == (None, None), "a log does not say when an engine has the weights"
    assert all("at an unknown date" in each.value for each in compared_runs(compared).facts)


def test_a_count_with_prompts_is_compared_with_the_same_count_of_the_other_run() -> None:
    """A trained 1,000 response tokens a step and 1,500 with prompts; B says only the latter, of the same steps."""
    with_responses, with_prompts = made_run(), made_run(tokens=[1500] * 20)
    with_responses = replace(with_responses, table=replace(with_responses.table, processed_tokens=np.full(20, 1500)))
    with_prompts = replace(with_prompts, counts_prompts=True)
    (pair,) = compare_runs(with_responses, [with_prompts]).pairs
    rate = pair.differences.row("tokens_per_s")
    assert (rate.before, rate.after, rate.change) == (750.0, 750.0, 0.0)
    assert pair.differences.row("response_tokens").before is None, "prompts say nothing of response lengths"
    assert [each.kind for each in pair.warnings] == [CompareWarningKind.COUNTS_PROMPTS]


def test_a_run_that_never_counted_its_tokens_has_no_rate_beside_one_with_prompts() -> None:
    unknown = counting_prompts(without(made_run(), "processed_tokens"))
    assert unknown.throughput.steady_tokens_per_s is None and unknown.throughput.achieved_tokens_per_s is None


@pytest.mark.parametrize("column", ["samples", "trained_tokens"])
def test_steps_without_samples_or_tokens_still_compare_their_periods(column: str) -> None:
    silent = without(made_run(periods_s=[1.0] * 20), column)
    found = differences_of(made_run(), silent)
    assert found.row("step_s").change == pytest.approx(-0.5)
    assert found.row("samples_per_step" if column == "samples" else "tokens_per_s").after is None


def test_what_a_log_does_not_say_is_unknown_and_what_a_config_lacks_is_unset() -> None:
    hooked = made_run(settings={"samples_per_step": 64, "max_staleness": 4, "queue_capacity_samples": None})
    log = imported(settings={"samples_per_step": 32})
    bare = made_run(settings={"samples_per_step": 32})
    assert one_sided_settings(hooked, log) == one_sided_settings(log, hooked) == {"max_staleness"}
    assert [*setting_changes(hooked, log)] == ["samples_per_step"]
    assert [*setting_changes(hooked, bare)] == ["max_staleness", "samples_per_step"]
    kinds = [each.kind for each in compare_runs(hooked, [log]).pairs[0].warnings]
    assert kinds == [CompareWarningKind.HIDDEN_SAMPLERS, CompareWarningKind.SETTINGS_PARTLY_KNOWN]


def test_samplers_that_a_log_does_not_show_are_no_reason_for_a_difference() -> None:
    hidden, shown = imported(), made_run()
    (pair,) = compare_runs(hidden, [shown]).pairs
    assert CompareWarningKind.HIDDEN_SAMPLERS in [each.kind for each in pair.warnings]
    (alike,) = compare_runs(hidden, [hidden]).pairs
    assert CompareWarningKind.HIDDEN_SAMPLERS not in [each.kind for each in alike.warnings]
