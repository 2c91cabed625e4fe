"""However the example ends, the trace it leaves is readable."""

import json
import os
import random
import signal
import time

import pytest
from rlscope_otel.schema import TABLES

from rlscope.pipeline import analyze
from tests.journals import recorded_rows
from tests.nightly import nightly
from tests.pipelines.pipeline_process import await_file, finish, kill_all, pid_of, start

pytestmark = [pytest.mark.pipelines, pytest.mark.usefixtures("no_model")]

ENDLESS = ("--steps", "1000000")
# A trainer that is so much faster always leaves room in the queue, so that the sampler is never held back; seven slots
# for groups of four leave one of a group waiting, so that samples do not all end together.
BUSY_SAMPLER = ("--slow-sampler", "10", "--slots", "7")
# Loading torch takes about two seconds; the moments fall before, into and after it.
LATEST_KILL_S = 6.0


def assert_readable(run_dir):
    for path in run_dir.glob("workers/*.json"):
        json.loads(path.read_text())
    for table in TABLES:
        recorded_rows(run_dir, table)


@pytest.mark.parametrize(
    "seeds",
    [(0, 1), *(nightly((seed, seed + 1)) for seed in range(2, 20, 2))],
    ids=lambda seeds: f"{seeds[0]} and {seeds[1]}",
)
def test_runs_killed_at_random_moments_are_analysable(tmp_path, seeds):
    """Two at once: most of a run's seconds are spent waiting for the moment."""
    moments_s = {tmp_path / str(seed): random.Random(seed).uniform(0, LATEST_KILL_S) for seed in seeds}
    pipelines = {folder: start(folder, *ENDLESS, "--seed", folder.name) for folder in moments_s}
    for folder in pipelines:
        await_file(folder / "run.json")
    began_s = time.monotonic()
    for folder in sorted(moments_s, key=moments_s.__getitem__):
        time.sleep(max(0.0, began_s + moments_s[folder] - time.monotonic()))
        kill_all(pipelines[folder])
    for folder in moments_s:
        assert_analysable(folder)


def assert_analysable(run_dir):
    assert_readable(run_dir)
    analysis = analyze(run_dir, also_ask=())
    workers = {path.stem for path in run_dir.glob("workers/*.json")}
    assert analysis.data_quality.skipped_files == ()
    assert set(analysis.data_quality.workers_without_end) == workers
    assert sum(state.gpu_ns for state in analysis.ledger.states) == analysis.ledger.total_gpu_ns


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_cleanly_and_records_what_was_running(tmp_path, number):
    pipeline = start(tmp_path, *ENDLESS, *BUSY_SAMPLER)
    await_file(tmp_path / "train_steps" / "trainer-000001.arrows")
    pipeline.send_signal(number)
    ended = finish(tmp_path, pipeline)
    assert (ended.exit_status, ended.stderr) == (0, "")
    assert ended.counted["interrupted"]
    analysis = analyze(tmp_path, also_ask=())
    assert analysis.data_quality.workers_without_end == ()
    assert analysis.run.tokens_trained == ended.counted["response_tokens_trained"]
    unfinished = [row["finish_reason"] for row in recorded_rows(tmp_path, "samples")].count("unfinished")
    assert unfinished == sum(sampler["samples_unfinished"] for sampler in ended.counted["samplers"]) > 0


def test_one_killed_sampler_ends_the_run_and_is_named(tmp_path):
    pipeline = start(tmp_path, *ENDLESS, "--samplers", "2")
    await_file(tmp_path / "train_steps" / "trainer-000001.arrows")
    os.kill(pid_of(tmp_path, "sampler-1"), signal.SIGKILL)
    ended = finish(tmp_path, pipeline)
    assert ended.exit_status == 1
    assert ended.counted["failed"] == ["sampler-1"]
    assert analyze(tmp_path, also_ask=()).data_quality.workers_without_end == ("sampler-1",)
