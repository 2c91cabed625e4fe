"""What several starts recorded into one folder is kept apart, and the report says what was done."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlscope import pipeline
from rlscope.document import as_dict
from rlscope.reports.documents.analysis import analysis_document
from rlscope.trace.execution import SqlLimits
from rlscope.trace.query import ask
from rlscope.trace.store import open_run
from tests.trace_folder import Row, delivery_row, engine_row, sample_row, train_row, worker, write_run

pytestmark = pytest.mark.usefixtures("no_model")
analyze = partial(pipeline.analyze, also_ask=())
SECOND = 10**9
TOKENS = 10
"""Response tokens of a sample."""
START_NS = 1_700_000_000 * SECOND


class Recording:
    """Rows of a loop that trains on one sample in each second, and names its samples 0, 1, ... at each start."""

    def __init__(self) -> None:
        self.workers: list[Row] = []
        self.tables: dict[str, list[Row]] = {
            name: [] for name in ("samples", "deliveries", "train_steps", "engine_steps", "weight_updates")
        }

    def worker(self, worker_id: str, role: str, start_s: int, end_s: int, *, killed: bool = False, **more: Any) -> None:
        start_ns, end_ns = START_NS + start_s * SECOND, START_NS + end_s * SECOND
        more = {"name": worker_id.split(".")[0], "last_flush_ns": end_ns} | more
        self.workers.append(worker(worker_id, role, start_ns, None if killed else end_ns, **more))

    def samples(self, worker_id: str, start_s: int, count: int, first: int = 0, tokens: int = TOKENS) -> None:
        for place in range(count):
            at_ns = START_NS + (start_s + place) * SECOND
            runs, stop_ns = [(place, 0, tokens)], at_ns + SECOND // 2
            ids = {"group_id": f"g{first + place}", "started_ns": at_ns, "finished_ns": stop_ns}
            self.tables["samples"].append(sample_row(f"{first + place}", worker_id, runs, **ids))
            self.tables["engine_steps"].append(engine_row(worker_id, at_ns, stop_ns, decode_tokens=tokens))

    def steps(self, worker_id: str, start_s: int, count: int, first: int = 0, first_id: int | None = None) -> None:
        for place in range(count):
            at_ns, step = START_NS + (start_s + place) * SECOND, first + place
            taken_ns = at_ns + SECOND * 6 // 10
            sample_id = f"{place + (first if first_id is None else first_id)}"
            named = {"taken_ns": taken_ns, "queued_ns": taken_ns - SECOND // 20, "step": step}
            self.tables["deliveries"].append(delivery_row(sample_id, worker_id, consumer_version=step, **named))
            self.tables["train_steps"].append(train_row(worker_id, taken_ns, at_ns + SECOND, step))

    def loop(self, start_s: int, count: int, suffix: str = "", first: int = 0, **more: Any) -> None:
        """Record both sides of the loop, for `count` steps."""
        for worker_id, role in (("sampler", "sampler"), ("trainer", "trainer")):
            self.worker(f"{worker_id}{suffix}", role, start_s, start_s + count, **more)
        self.samples(f"sampler{suffix}", start_s, count, first)
        self.steps(f"trainer{suffix}", start_s, count, first)

    def write(self, folder: Path, config: Row | None = None) -> Path:
        return write_run(folder, self.workers, config, **self.tables)


@pytest.fixture
def recording() -> Recording:
    return Recording()


def test_the_same_script_recorded_twice_is_analyzed_as_the_last_recording_alone(
    recording: Recording, tmp_path: Path
) -> None:
    recording.loop(0, 20)
    recording.loop(100, 10, ".r1")
    folder = recording.write(tmp_path / "twice")
    analysis = analyze(folder)
    alone = Recording()
    alone.loop(100, 10)
    expected = analyze(alone.write(tmp_path / "alone"))
    assert analysis.run.started_ns == START_NS + 100 * SECOND
    assert (analysis.run.steps, analysis.run.samples_trained, analysis.run.tokens_trained) == (10, 10, 10 * TOKENS)
    assert analysis.throughput == expected.throughput
    assert analysis.staleness == expected.staleness
    assert analysis.ledger.total_gpu_s == expected.ledger.total_gpu_s == 20.0
    assert analysis.verdict.bottleneck == expected.verdict.bottleneck
    said = [gap for gap in analysis.data_quality.gaps if gap not in expected.data_quality.gaps]
    assert said == [
        "This folder holds more than one recording; only the last one, from 2023-11-14 22:15:00 UTC on, is analyzed. "
        "Record each run in its own folder"
    ]
    with open_run(folder) as run:
        asked = "SELECT count(*), min(worker_id), max(worker_id) FROM samples"
        assert run.locked.open(SqlLimits()).sql(asked).fetchall() == [(10, "sampler.r1", "sampler.r1")]
        assert run.row_counts["samples"] == 10


@pytest.mark.parametrize(
    ("first", "crashes_between", "steps", "said"),
    [
        (20, False, 30, "started 2 times, and each start resumed the steps"),
        (20, True, 30, "started 3 times, and each start resumed the steps"),
        (19, False, 10, "holds more than one recording"),
    ],
)
def test_a_start_that_repeats_no_step_of_the_last_one_continues_its_run(
    first: int, crashes_between: bool, steps: int, said: str, recording: Recording, tmp_path: Path
) -> None:
    recording.loop(0, 20, killed=True)
    if crashes_between:
        recording.worker("trainer.r1", "trainer", 50, 55, killed=True)
    recording.loop(100, 10, ".r2", first=first)
    analysis = analyze(recording.write(tmp_path))
    assert (analysis.run.steps, analysis.run.tokens_trained) == (steps, steps * TOKENS)
    assert (analysis.run.trainer_gpus, analysis.run.sampler_gpus) == (1, 1)
    assert any(said in gap for gap in analysis.data_quality.gaps)


@pytest.mark.parametrize(("trainer_end_s", "sampler_s"), [(5, (0, 5)), (0, (1, 1))], ids=["later", "before a flush"])
def test_a_start_that_crashed_before_its_first_step_is_no_part_of_the_next(
    trainer_end_s: int, sampler_s: tuple[int, int], recording: Recording, tmp_path: Path
) -> None:
    recording.worker("trainer", "trainer", 0, trainer_end_s, killed=True)
    recording.worker("sampler", "sampler", *sampler_s, killed=True)
    recording.samples("sampler", 0, sampler_s[1] - sampler_s[0])
    recording.loop(100, 10, ".r1")
    analysis = analyze(recording.write(tmp_path))
    run = analysis.run
    assert (run.duration_s, run.steps, run.tokens_trained, run.sampler_gpus) == (10.0, 10, 10 * TOKENS, 1)
    assert any("holds more than one recording" in gap for gap in analysis.data_quality.gaps)


def test_a_sampler_that_is_started_again_has_samples_of_its_own_under_ids_that_it_uses_again(
    recording: Recording, tmp_path: Path
) -> None:
    recording.worker("trainer", "trainer", 0, 20)
    recording.worker("sampler", "sampler", 0, 10, killed=True)
    recording.worker("sampler.r1", "sampler", 10, 20)
    recording.samples("sampler", 0, 10, tokens=30)
    recording.samples("sampler.r1", 10, 10)
    recording.steps("trainer", 0, 10)
    recording.steps("trainer", 10, 10, first=10, first_id=0)
    folder = recording.write(tmp_path)
    analysis = analyze(folder)
    balance = analysis.answers["token_balance"].row(0, named=True)
    assert analysis.run.samples_trained == 20
    assert analysis.run.tokens_trained == balance["generated_tokens"] == 10 * 30 + 10 * TOKENS
    assert analysis.throughput.generated_tokens_per_s == analysis.throughput.achieved_tokens_per_s == 20.0
    assert any("reused 10 sample ids" in gap for gap in analysis.data_quality.gaps)
    with open_run(folder) as run:
        uses = ask(run, "delivered_samples").sort("step")
        assert uses["output_tokens"].to_list() == [30] * 10 + [TOKENS] * 10
        groups = run.connection.sql("SELECT count(DISTINCT group_id) FROM samples").fetchall()
        assert groups == [(20,)]


def test_a_sample_that_continues_on_an_engine_started_again_stays_one_sample(
    recording: Recording, tmp_path: Path
) -> None:
    recording.loop(0, 10)
    recording.worker("sampler.r1", "sampler", 10, 12)
    recording.tables["samples"].append(
        sample_row("0", "sampler.r1", [(9, 0, 5)], segment=1, finished_ns=START_NS + 11 * SECOND)
    )
    with open_run(recording.write(tmp_path)) as run:
        (sample,) = ask(run, "sample_totals").filter(sample_id="0").rows(named=True)
        assert (sample["segments"], sample["output_tokens"]) == (2, TOKENS + 5)
        assert not any("sample ids again" in gap for gap in run.gaps)


def test_a_sampler_that_outlives_the_trainers_counts_from_the_last_recording_on(
    recording: Recording, tmp_path: Path
) -> None:
    recording.worker("sampler", "sampler", 0, 40)
    recording.worker("trainer", "trainer", 0, 20, killed=True)
    recording.worker("trainer.r1", "trainer", 30, 40)
    recording.samples("sampler", 0, 40)
    recording.steps("trainer", 0, 20)
    # The first of them waited in the queue while no trainer ran.
    recording.steps("trainer.r1", 30, 10, first=0, first_id=25)
    analysis = analyze(recording.write(tmp_path))
    extents = {row["worker_id"]: row for row in analysis.answers["worker_extents"].iter_rows(named=True)}
    assert extents.keys() == {"sampler", "trainer.r1"}
    assert extents["sampler"]["start_ns"] == START_NS + 30 * SECOND
    assert (analysis.run.steps, analysis.run.samples_trained, analysis.run.tokens_trained) == (10, 10, 10 * TOKENS)
    assert "deliveries: 5 rows name a sample that was not recorded" not in analysis.data_quality.gaps


def test_the_last_recording_has_the_settings_that_it_was_started_with(recording: Recording, tmp_path: Path) -> None:
    recording.loop(0, 10, config={"max_staleness": 1})
    recording.loop(100, 10, ".r1", config={"max_staleness": 7})
    run = analyze(recording.write(tmp_path, config={"max_staleness": 1, "framework": "own"})).run
    assert (run.max_staleness, dict(run.settings)) == (7, {"max_staleness": 7, "framework": "own"})


def test_more_tokens_trained_than_generated_take_the_verdict_away(recording: Recording, tmp_path: Path) -> None:
    recording.loop(0, 20)
    recording.worker("trainer.1", "trainer", 0, 20)
    recording.steps("trainer.1", 0, 20)
    analysis = analyze(recording.write(tmp_path))
    assert analysis.verdict.bottleneck == "unknown"
    reason = "400 tokens were trained and 200 tokens generated, which cannot be"
    assert (analysis.verdict.unknown_reason or "").startswith(reason)
    assert analysis.data_quality.gaps[0].startswith(reason)
    assert as_dict(analysis_document(analysis))["data_quality"]["gaps"][0].startswith(reason)


def test_samples_that_are_trained_on_in_several_steps_keep_the_verdict(recording: Recording, tmp_path: Path) -> None:
    recording.worker("sampler", "sampler", 0, 20)
    recording.worker("trainer", "trainer", 0, 20)
    recording.samples("sampler", 0, 10)
    recording.steps("trainer", 0, 10)
    recording.steps("trainer", 10, 10, first=10, first_id=0)
    analysis = analyze(recording.write(tmp_path))
    assert analysis.run.tokens_trained == 2 * 10 * TOKENS
    assert analysis.data_quality.no_verdict == ()


def test_samplers_that_run_side_by_side_under_the_same_ids_take_the_verdict_away(
    recording: Recording, tmp_path: Path
) -> None:
    recording.loop(0, 20)
    recording.worker("sampler.r1", "sampler", 0, 20)
    recording.samples("sampler.r1", 0, 20)
    analysis = analyze(recording.write(tmp_path))
    assert analysis.verdict.bottleneck == "unknown"
    assert "40 of 40 sample rows share their id with another" in (analysis.verdict.unknown_reason or "")
