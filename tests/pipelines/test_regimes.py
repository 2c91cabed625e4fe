"""Each regime of the example, run for real: what rlscope finds is what the pipeline counted itself."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.pipelines.pipeline_process import Ended, run
from tests.pipelines.processes import assert_accounted

pytestmark = pytest.mark.pipelines

REGIMES = {
    "stale samples are dropped": "--samplers 2 --steps 40 --staleness-policy drop --max-staleness 1 --slow-trainer 3"
    " --queue-capacity-samples 64",
    "publication waits": "--steps 40 --staleness-policy publication_waits --max-staleness 1",
    "admission by staleness": "--steps 40 --staleness-policy admission --max-staleness 0",
    "admission by count": "--steps 40 --staleness-policy none --max-in-flight-samples 24",
    "synchronous": "--steps 20 --samplers 2 --synchronous",
    "every side line": "--steps 20 --filter-flat-groups --logprobs-pass --eval-every 5 --checkpoint-every 10"
    " --publish-every 2",
}


def states_of(ended: Ended, role: str) -> set[str | None]:
    """States in the ledger, and reasons of waits."""
    own = [state for state in ended.analysis.ledger.states if state.role == role]
    return {state.state for state in own} | {state.reason for state in own}


@pytest.fixture(scope="module")
def endings(tmp_path_factory) -> dict[str, Ended]:
    """Every regime, two at a time: no test here asks how long anything took, and a run waits for much of its time."""
    folder = tmp_path_factory.mktemp("runs")
    with ThreadPoolExecutor(2) as pool:
        ended = pool.map(lambda regime: run(folder / regime, *REGIMES[regime].split()), REGIMES)
        return dict(zip(REGIMES, ended, strict=True))


@pytest.fixture(scope="module", params=REGIMES, ids=lambda regime: regime.replace(" ", "-"))
def recorded(request, endings):
    return endings[request.param]


def test_nothing_is_said_on_stderr(recorded):
    assert recorded.stderr == ""


def test_totals_equal_the_pipelines_own_count(recorded):
    facts, counted = recorded.analysis.run, recorded.counted
    expected = [counted[name] for name in ("steps", "samples_trained", "response_tokens_trained")]
    assert [facts.steps, facts.samples_trained, facts.tokens_trained] == expected


def test_token_staleness_equals_the_pipelines_own_count(recorded):
    tokens, counted = recorded.analysis.staleness.tokens, recorded.counted
    assert [list(pair) for pair in tokens.histogram] == counted["token_staleness_histogram"]
    assert tokens.mean == pytest.approx(counted["token_staleness_mean"])
    assert tokens.max == counted["token_staleness_max"]


def test_what_was_dropped_equals_the_pipelines_own_count(recorded):
    outcomes = recorded.analysis.answers["delivery_outcomes"]
    samples = dict(outcomes.select("outcome", "samples").iter_rows())
    tokens = dict(outcomes.select("outcome", "tokens").iter_rows())
    counted = recorded.counted
    assert samples.get("dropped_stale", 0) == counted["samples_dropped_stale"]
    assert tokens.get("dropped_stale", 0) == counted["response_tokens_dropped_stale"]
    assert samples.get("filtered", 0) == counted["samples_filtered"]


def test_generated_tokens_equal_the_engines_own_count(recorded):
    generated = recorded.analysis.answers["token_balance"]["generated_tokens"][0]
    assert generated == sum(sampler["tokens_generated"] for sampler in recorded.counted["samplers"])


def test_nothing_is_missing_and_little_is_unattributed(recorded):
    assert_accounted(recorded.analysis, unattributed_ratio=0.1)


@pytest.mark.parametrize("recorded", ["stale samples are dropped", "publication waits"], indirect=True)
def test_the_cap_is_kept(recorded):
    assert recorded.counted["token_staleness_max"] == 1
    assert recorded.analysis.staleness.over_cap_tokens == 0


@pytest.mark.parametrize("recorded", ["stale samples are dropped"], indirect=True)
def test_a_slow_trainer_drops_samples(recorded):
    assert recorded.counted["samples_dropped_stale"] > 0


@pytest.mark.parametrize("recorded", ["synchronous"], indirect=True)
def test_a_synchronous_run_has_no_staleness_and_waits_at_the_barrier(recorded):
    assert recorded.counted["token_staleness_histogram"] == [[0, recorded.counted["response_tokens_trained"]]]
    assert "barrier" in states_of(recorded, "sampler")


@pytest.mark.parametrize("recorded", ["admission by staleness"], indirect=True)
def test_admission_holds_samplers_back_for_staleness(recorded):
    assert "staleness_cap" in states_of(recorded, "sampler")
    assert recorded.counted["token_staleness_max"] == 0


@pytest.mark.parametrize("recorded", ["every side line"], indirect=True)
def test_side_lines_are_states_of_the_ledger(recorded):
    assert recorded.counted["publications"] == 10
    assert {"eval", "checkpoint", "logprobs", "publishing_weights", "train", "startup"} <= states_of(
        recorded, "trainer"
    )
