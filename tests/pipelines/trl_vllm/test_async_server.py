"""TRL's AsyncGRPOTrainer and its own rollout process against a real `vllm serve`: three records that agree."""

import socket
from datetime import datetime
from itertools import groupby
from pathlib import Path

import pytest

from rlscope import api
from rlscope.alerts.live.scrape import scraping
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from rlscope.importers.target import ImportOptions
from rlscope.trace.store import open_run
from tests.pipelines.processes import assert_accounted
from tests.pipelines.trl.async_record import TrlRecorded, record

pytestmark = pytest.mark.vllm

STEPS = 30
SECOND_NS = 10**9


@pytest.fixture(scope="module")
def scraped(tmp_path_factory) -> Path:
    """The folder that `rlscope watch --scrape` would record the server into, from its metrics page alone."""
    return tmp_path_factory.mktemp("scraped")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, scraped) -> TrlRecorded:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    with pytest.MonkeyPatch.context() as environment, scraping([f"http://127.0.0.1:{port}/metrics"], scraped, 1):
        environment.setenv("VLLM_LOGGING_LEVEL", "INFO")  # For its lines every ten seconds.
        flags = ("--engine", "vllm", "--steps", str(STEPS), "--port", str(port))
        return record(folder, *flags)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_the_engine_records_every_sample_under_trl_s_group_and_nobody_else_does(recorded):
    samples = recorded.rows("samples")
    assert {row["worker_id"] for row in samples} == {"sampler"}
    assert {row["version_source"] for row in samples} == {"engine"}
    assert len({row["sample_id"] for row in samples}) == len(samples)
    assert all(row["sample_id"].startswith(f"{row['group_id']}-") for row in samples)
    assert {row["sample_id"] for row in recorded.rows("deliveries")} <= {row["sample_id"] for row in samples}


def test_tokens_of_each_group_are_those_that_the_reward_function_saw(recorded):
    tokens = {row["sample_id"]: (row["group_id"], row["output_tokens"]) for row in recorded.rows("samples")}
    taken = [tokens[row["sample_id"]] for row in sorted(recorded.rows("deliveries"), key=lambda row: row["taken_ns"])]
    found = [sum(count for _, count in rows) for _, rows in groupby(taken, key=lambda row: row[0])]
    assert found == recorded.counted["scored_group_tokens"][: len(found)]


def test_no_token_is_older_than_trl_thought_its_group_was_when_it_was_taken(recorded):
    """TRL counts from the admission of the group; a token is sampled by that version or a later one."""
    oldest = {row["sample_id"]: row["versions"][0]["version"] for row in recorded.rows("samples") if row["versions"]}
    for taken, mean, most in zip(
        recorded.kept_by_log(),
        recorded.logged("sample/staleness_mean"),
        recorded.logged("sample/staleness_max"),
        strict=True,
    ):
        ages = [row["taken_version"] - oldest[row["sample_id"]] for row in taken]
        assert sum(ages) / len(ages) <= mean + 1e-6
        assert 0 <= max(ages) <= most


def test_the_rollout_process_is_a_controller_that_scored_every_group(recorded):
    rewards = recorded.rows("activities", activity="reward")
    assert {row["worker_id"] for row in rewards} == {"trainer-rollouts"}
    assert len(rewards) == len(recorded.counted["scored_group_tokens"])


def test_the_ledger_closes_and_nothing_is_missing(recorded):
    # vLLM kills its engine core when that takes longer to end than vLLM waits, as it may on a busy machine.
    without_end = recorded.analysis.data_quality.workers_without_end
    assert without_end in ((), ("sampler",))
    assert_accounted(recorded.analysis, without_end=without_end)
    assert {"startup", "train"} <= recorded.states("trainer").keys()
    assert "decoding" in recorded.states("sampler")


def test_the_page_of_the_server_beside_trl_s_log_says_what_the_hooks_recorded(recorded, scraped):
    with open_run(scraped) as run:
        [(tokens,)] = run.connection.sql("SELECT sum(decode_tokens) FROM engine_steps").fetchall()
    # Of the last second before the server ends, and of the first after it began, the page is not read.
    assert tokens == pytest.approx(sum(row["decode_tokens"] for row in recorded.rows("engine_steps")), rel=0.1)
    events = next(recorded.logs.glob("**/events.out.tfevents.*"))
    joined = api.analyze(events, options=import_options(engine_logs=[str(scraped)], gpus="trainer=1,sampler=1"))
    assert joined.verdict.bottleneck == recorded.analysis.verdict.bottleneck


def test_tokens_of_vllm_s_own_log_are_those_that_the_hooks_recorded(recorded, tmp_path):
    """Its stamps are whole seconds: what is decoded in a second at either end may be on the other side."""
    offset_s = datetime.now().astimezone().utcoffset().total_seconds()
    options = ImportOptions(utc_offset_s=round(offset_s))
    import_run(recorded.run_dir / "vllm_serve.log", tmp_path / "run", options)
    with open_run(tmp_path / "run") as run:
        [(logged, first_ns, last_ns)] = run.connection.sql(
            "SELECT sum(decode_tokens), min(start_ns), max(end_ns) FROM engine_steps"
        ).fetchall()

    def decoded(from_ns: int, to_ns: int) -> int:
        rows = recorded.rows("engine_steps")
        return sum(row["decode_tokens"] for row in rows if from_ns <= row["start_ns"] < to_ns)

    assert logged > 0
    assert logged <= decoded(first_ns - SECOND_NS, last_ns + SECOND_NS)
    assert logged >= decoded(first_ns + SECOND_NS, last_ns - SECOND_NS)
