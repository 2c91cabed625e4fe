"""Analyses on a Ray cluster of two nodes of one CPU each, which these tests start."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from rlscope_otel.schema import TABLES

import rlscope
from rlscope import cluster, pipeline
from rlscope.trace import compaction, distribution
from rlscope.trace.compacted_file import CompactedFile
from rlscope.trace.completeness import Completeness
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.questions import WORKER, questions
from rlscope.trace.shares import Argument, Share
from rlscope.trace.store import Divide, open_run
from tests.scattered_run import UNORDERED, scattered_run
from tests.trace.recorded import record
from tests.trace_folder import engine_row, sample_row, worker, write_rows, write_run

ray = pytest.importorskip("ray", reason="Ray is not installed: make cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

TRACE = Path(__file__).parents[2] / "sample_traces" / "starved_trainer"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 10**6}
MERGED = [name for name, question in questions().items() if question.merge is not None]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE)
    nodes.add_node(**NODE)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


def on_nodes(nodes: Any, progress: Callable[[str], None] = pipeline.say_nothing) -> Divide:
    divide = cluster.on_ray(nodes.address, progress)
    assert divide is not None
    return divide


def merged_answers(folder: Path, divide: Divide | None) -> dict[str, pl.DataFrame]:
    """The answers to all questions that shares answer; rows that are in no order are put in one."""
    with open_run(folder, divide=divide) as run:
        arguments = standard_arguments(run)
        answers = {name: ask(run, name, arguments) for name in MERGED}
    return answers | {name: answers[name].sort(pl.all()) for name in UNORDERED}


def document(folder: Path, address: str | None) -> dict[str, Any]:
    """The JSON document of an analysis."""
    return json.loads(rlscope.analyze(folder, ray=address).to_json())


def test_the_document_of_an_analysis_is_that_of_one_process(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    assert document(folder, two_nodes.address) == document(folder, None)


def test_a_damaged_file_is_left_out_and_named_as_by_one_process(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    path = folder / "activities" / "e0-000001.parquet"
    damaged = bytearray(path.read_bytes())
    damaged[8:60] = b"\xff" * 52
    path.write_bytes(damaged)
    found = document(folder, two_nodes.address)
    assert [file["path"] for file in found["data_quality"]["skipped_files"]] == ["activities/e0-000001.parquet"]
    assert found == document(folder, None)


def test_processes_that_end_leave_no_temporary_files(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")

    def scratch_folders() -> int:
        links = Path(tempfile.gettempdir()).glob("rlscope-*/run")
        return sum(link.is_symlink() and link.resolve() == folder for link in links)

    with open_run(folder, divide=on_nodes(two_nodes)) as run:
        assert ask(run, "ledger", standard_arguments(run)).height
        assert scratch_folders() == 3, "one of this process, one of each node"
    assert scratch_folders() == 0


def test_progress_is_in_gpu_time_covered(two_nodes: Any, tmp_path: Path) -> None:
    workers = [worker(name, "sampler", 0, 3600 * 10**9, gpu_count=2) for name in ("e0", "e1")]
    steps = [engine_row(name, 0, 10**9) for name in ("e0", "e1")]
    said = list[str]()
    merged_answers(write_run(tmp_path / "run", workers, engine_steps=steps), on_nodes(two_nodes, said.append))
    assert said[:2] == ["worker extents: 2 GPU-h of 4 GPU-h", "worker extents: 4 GPU-h of 4 GPU-h"]
    assert "sample totals: 1 of 2 shares of samples" in said


def test_more_nodes_than_workers_and_samples_leave_shares_empty(two_nodes: Any, tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", [worker("e0", "sampler")], samples=[sample_row("s0", "e0", [(0, 0, 9)])], engine_steps=[]
    )
    whole, divided = merged_answers(folder, None), merged_answers(folder, on_nodes(two_nodes))
    assert all(frame.equals(divided[name]) for name, frame in whole.items())


def test_rules_are_evaluated_as_by_one_process(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    rule = "staleness.tokens.mean > 0"
    divided, whole = (rlscope.check(folder, fail_if=rule, ray=each) for each in (two_nodes.address, None))
    assert divided.failed()
    assert divided.to_text("json") == whole.to_text("json")


def test_a_share_that_ends_its_process_every_time_is_left_out_and_named(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(cluster.ShareHolder):
        def answer(self, share: Share, name: str, arguments: Mapping[str, Argument]) -> pa.Table | rlscope.RlscopeError:
            if share.partition == WORKER and "e0" in share.workers and not self._stored.lost:
                os._exit(1)
            return super().answer(share, name, arguments)

    monkeypatch.setattr(cluster, "ShareHolder", Dying)
    result = pipeline.analyze(scattered_run(tmp_path / "run"), divide=on_nodes(two_nodes))
    (gap,) = [gap for gap in result.data_quality.gaps if "by worker failed 3 times" in gap]
    assert "e0" in gap and "are unattributed" in gap
    assert result.data_quality.completeness.state == "incomplete"
    assert "rows_missing" in {alert.rule for alert in result.alerts}
    extents = result.answers["worker_extents"].filter(pl.col("worker_id") == "e0")
    assert extents["has_rows"].to_list() == [False]


def test_other_versions_on_a_node_are_refused(two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", [worker("e0", "sampler")])
    monkeypatch.setattr(cluster, "versions", lambda: {"rlscope": "0.0.1", "duckdb": "1.0.0"})
    expected = r"--ray: found rlscope [0-9.]+, duckdb .* on node \w+; expected rlscope 0.0.1, duckdb 1.0.0"
    with pytest.raises(rlscope.RlscopeError, match=expected), open_run(folder, divide=on_nodes(two_nodes)):
        pass


def test_a_run_that_a_node_cannot_read_is_refused(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(cluster.ShareHolder):
        def sees_run(self) -> bool:
            return False

    monkeypatch.setattr(cluster, "ShareHolder", Elsewhere)
    folder = write_run(tmp_path / "run", [worker("e0", "sampler")])
    expected = r"found no such run folder on node \w+; expected a run folder that every node can read"
    with pytest.raises(rlscope.RlscopeError, match=expected), open_run(folder, divide=on_nodes(two_nodes)):
        pass


def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [worker("e0", "sampler")])
    divide = cluster.on_ray("127.0.0.1:1", pipeline.say_nothing)
    with pytest.raises(rlscope.RlscopeError, match="found no cluster"), open_run(folder, divide=divide):
        pass


def many_files(folder: Path) -> Path:
    """A run of two engines that state all that they wrote, in 24 files."""
    for name in ("e0", "e1"):
        steps = [[engine_row(name, at, at + 1, decode_tokens=at)] for at in range(8)]
        samples = [[sample_row(f"{name}-{at}", name, [(0, 0, 9)], finished_ns=at + 1)] for at in range(4)]
        record(folder, name, "sampler", {"engine_steps": steps, "samples": samples})
    return folder


def rows_of(folder: Path) -> dict[str, list[Any]]:
    """Every row of every table, in the order in which an analysis reads them."""
    with open_run(folder) as run:
        assert run.completeness == Completeness("complete", is_verified=True)
        assert run.skipped_files == ()
        return {table: run.connection.sql(f"SELECT * FROM {table}").fetchall() for table in TABLES}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that a few files are enough for."""
    monkeypatch.setattr(distribution, "_PIECE_FILES", 3)
    monkeypatch.setattr(compaction, "_GROUP_FILES", 5)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_run_is_compacted_by_the_nodes_and_every_row_is_as_before(
    two_nodes: Any, tmp_path: Path, is_copy: bool
) -> None:
    folder, out, said = many_files(tmp_path / "run"), tmp_path / "copy" if is_copy else None, list[str]()
    before = rows_of(folder)
    done = rlscope.compact(folder, out, verify=True, progress=said.append, ray=two_nodes.address)
    assert (done.files_before, done.files_after, done.rows, done.left) == (24, 4, 24, ())
    assert "compacting engine_steps: 3 of 3 parts" in said
    assert rows_of(out or folder) == before
    assert document(out or folder, two_nodes.address) == document(folder, None)


@pytest.mark.usefixtures("small_pieces")
def test_a_process_that_ends_while_it_compacts_loses_and_doubles_nothing(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndsOnce:
        """Ends its process when it has published a file and removed one of those that it replaces."""

        def __init__(self, mark: Path) -> None:
            self.mark = mark

        def __call__(self, job: Any, say: Callable[[str], None] = pipeline.say_nothing) -> Any:
            if job.table == "engine_steps" and not self.mark.exists():
                file = CompactedFile(job.target / job.table, job.table)
                assert [file.add(source) for source in job.sources] == [None] * len(job.sources)
                file.close()
                file.publish()
                job.sources[0].path.unlink()
                self.mark.touch()
                os._exit(1)
            return write(job, say)

    write = compaction._write
    monkeypatch.setattr(compaction, "_write", EndsOnce(tmp_path / "ended"))
    folder = many_files(tmp_path / "run")
    before = rows_of(folder)
    done = rlscope.compact(folder, ray=two_nodes.address)
    assert (tmp_path / "ended").exists()
    assert done.leftovers > 0
    assert rows_of(folder) == before


@pytest.mark.usefixtures("small_pieces")
def test_a_damaged_file_is_left_by_the_nodes_and_named(two_nodes: Any, tmp_path: Path) -> None:
    folder = many_files(tmp_path / "run")
    path = folder / "engine_steps" / "e1-000003.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    done = rlscope.compact(folder, ray=two_nodes.address)
    assert [each.path for each in done.left] == ["engine_steps/e1-000003.parquet"]
    found = document(folder, two_nodes.address)
    assert [file["path"] for file in found["data_quality"]["skipped_files"]] == ["engine_steps/e1-000003.parquet"]
    assert found == document(folder, None)


@pytest.mark.usefixtures("small_pieces")
def test_footers_and_checksums_that_the_nodes_read_are_those_of_one_process(two_nodes: Any, tmp_path: Path) -> None:
    folder = many_files(tmp_path / "run")
    path = folder / "engine_steps" / "e1-000002.parquet"
    write_rows(folder, "engine_steps", "e1", [engine_row("e1", 1, 2, decode_tokens=77)], 2)
    assert path.exists()
    with open_run(folder, divide=on_nodes(two_nodes)) as divided, open_run(folder) as whole:
        assert divided.completeness == whole.completeness
        assert [gap.kind for gap in whole.completeness.gaps] == ["changed"]
        assert divided.skipped_files == whole.skipped_files


def end_node(nodes: Any, split: cluster.OnRay) -> None:
    """End the second node without warning, and wait until the process on it is gone."""
    (second,) = nodes.worker_nodes
    (process,) = [each for each in split.processes if each.node == second.node_id]
    nodes.remove_node(second, allow_graceful=False)
    with pytest.raises(ray.exceptions.RayActorError):
        while True:
            ray.get(process.holder.about.remote(), timeout=60)


def test_a_node_that_is_lost_half_way_changes_no_answer(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    said, divided = list[str](), dict[str, pl.DataFrame]()
    with open_run(folder, divide=on_nodes(two_nodes, said.append)) as run:
        assert isinstance(run.split, cluster.OnRay)
        arguments = standard_arguments(run)
        for place, name in enumerate(MERGED):
            if place == len(MERGED) // 2:
                end_node(two_nodes, run.split)
            divided[name] = ask(run, name, arguments)
    assert [each for each in said if each.endswith("is tried again: its process ended")]
    divided |= {name: divided[name].sort(pl.all()) for name in UNORDERED}
    whole = merged_answers(folder, None)
    assert all(frame.equals(divided[name]) for name, frame in whole.items())


def test_verdict_and_recommendation_are_those_of_one_process_though_a_node_is_lost_half_way(two_nodes: Any) -> None:
    if not two_nodes.worker_nodes:
        two_nodes.add_node(**NODE)
        two_nodes.wait_for_nodes()
    said = list[str]()

    def lose_a_node(doing: str) -> None:
        said.append(doing)
        if doing == "pass latency":
            (second,) = two_nodes.worker_nodes
            two_nodes.remove_node(second, allow_graceful=False)

    divided = rlscope.analyze(TRACE, progress=lose_a_node, ray=two_nodes.address)
    whole = json.loads(rlscope.analyze(TRACE).to_json())
    assert [each for each in said if each.endswith("is tried again: its process ended")]
    assert whole["recommendation"]["action"] == "change"
    assert whole["actions"]
    assert json.loads(divided.to_json()) == whole
