"""Analyses on a Ray cluster of two nodes of one CPU each, which these tests start."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import rlscope
from rlscope import cluster, pipeline
from rlscope.trace.query import ask, standard_arguments
from rlscope.trace.questions import WORKER, questions
from rlscope.trace.shares import Argument, Partition
from rlscope.trace.store import Partitioner, StoredRun, open_run
from tests.ray_start import started
from tests.scattered_run import UNORDERED, scattered_run
from tests.trace_folder import engine_row, worker, write_run

ray = pytest.importorskip("ray", reason="Ray is not installed: make cluster")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

TRACE = Path(__file__).parents[2] / "sample_traces" / "starved_trainer"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 10**6}
HEAD = {**NODE, "_system_config": {"health_check_period_ms": 300}}
"""A node that refuses five checks is lost; Ray waits 3 s between them. A busy one still has 10 s to answer each."""
SOME = [name for name, question in questions().items() if question.merge is not None][::4]
"""Shares without a cluster answer every question in tests/trace/test_shares.py."""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    nodes = started(lambda: Cluster(initialize_head=True, head_node_args=HEAD))
    nodes.add_node(**NODE)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


def on_nodes(nodes: Any, progress: Callable[[str], None] = pipeline.say_nothing) -> Partitioner:
    divide = cluster.on_ray(nodes.address, progress)
    assert divide is not None
    return divide


def merged_answers(folder: Path, divide: Partitioner | None) -> dict[str, pl.DataFrame]:
    """The answers to questions that shares answer; rows that are in no order are put in one."""
    with open_run(folder, divide=divide) as run:
        arguments = standard_arguments(run)
        answers = {name: ask(run, name, arguments) for name in SOME}
    return {name: frame.sort(pl.all()) if name in UNORDERED else frame for name, frame in answers.items()}


def document(folder: Path, address: str | None) -> dict[str, Any]:
    """The JSON document of an analysis."""
    return json.loads(rlscope.analyze(folder, ray=address).to_json())


def test_the_document_of_an_analysis_is_that_of_one_process(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    assert document(folder, two_nodes.address) == document(folder, None)


def test_processes_that_end_leave_no_temporary_files(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")

    def scratch_folders() -> int:
        links = Path(tempfile.gettempdir()).glob("rlscope-*/run")
        return sum(link.is_symlink() and link.resolve() == folder for link in links)

    with open_run(folder, divide=on_nodes(two_nodes)) as run:
        assert ask(run, "ledger", standard_arguments(run)).height
        assert scratch_folders() == 3, "one of this process, one of each node"
    assert scratch_folders() == 0


def test_progress_is_in_shares(two_nodes: Any, tmp_path: Path) -> None:
    workers = [worker(name, "sampler", 0, 3600 * 10**9, gpu_count=2) for name in ("e0", "e1")]
    steps = [engine_row(name, 0, 10**9) for name in ("e0", "e1")]
    said = list[str]()
    merged_answers(write_run(tmp_path / "run", workers, engine_steps=steps), on_nodes(two_nodes, said.append))
    assert said[:2] == ["worker extents: 1 of 2 shares", "worker extents: 2 of 2 shares"]


def test_rules_are_evaluated_as_by_one_process(two_nodes: Any, tmp_path: Path) -> None:
    folder = scattered_run(tmp_path / "run")
    rule = "staleness.tokens.mean > 0"
    divided, whole = (rlscope.check(folder, fail_if=rule, ray=each) for each in (two_nodes.address, None))
    assert divided.failed()
    assert divided.to_text("json") == whole.to_text("json")


def test_a_process_that_ends_every_time_ends_the_analysis_with_its_reason(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(cluster.PartitionHolder):
        def answer(
            self, share: Partition, name: str, arguments: Mapping[str, Argument]
        ) -> pa.Table | rlscope.RlscopeError:
            if share.partition == WORKER and "e0" in share.workers:
                os._exit(1)
            return super().answer(share, name, arguments)

    monkeypatch.setattr(cluster, "PartitionHolder", Dying)
    expected = "--ray: found a process on a node that ended 3 times .*; expected nodes that run the same rlscope"
    with pytest.raises(rlscope.RlscopeError, match=expected):
        pipeline.analyze(scattered_run(tmp_path / "run"), divide=on_nodes(two_nodes))


def test_a_process_that_ends_once_is_started_again_and_changes_no_answer(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ended"

    class EndingOnce(cluster.PartitionHolder):
        def answer(
            self, share: Partition, name: str, arguments: Mapping[str, Argument]
        ) -> pa.Table | rlscope.RlscopeError:
            if not mark.exists():
                mark.touch()
                os._exit(1)
            return super().answer(share, name, arguments)

    monkeypatch.setattr(cluster, "PartitionHolder", EndingOnce)
    folder = scattered_run(tmp_path / "run")
    whole, divided = merged_answers(folder, None), merged_answers(folder, on_nodes(two_nodes))
    assert mark.exists()
    assert all(frame.equals(divided[name]) for name, frame in whole.items())


def test_other_versions_on_a_node_are_refused(two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", [worker("e0", "sampler")])
    monkeypatch.setattr(cluster, "versions", lambda: {"rlscope": "0.0.1", "duckdb": "1.0.0"})
    expected = r"--ray: found rlscope [0-9.]+, duckdb .* on a node; expected rlscope 0.0.1, duckdb 1.0.0"
    with pytest.raises(rlscope.RlscopeError, match=expected), open_run(folder, divide=on_nodes(two_nodes)):
        pass


def test_a_run_that_a_node_cannot_read_is_refused(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(cluster.PartitionHolder):
        def __init__(self, stored: StoredRun, expected: Mapping[str, str]) -> None:
            super().__init__(replace(stored, folder=tmp_path / "elsewhere"), expected)

    monkeypatch.setattr(cluster, "PartitionHolder", Elsewhere)
    folder = write_run(tmp_path / "run", [worker("e0", "sampler")])
    expected = r"found no such run folder on node \S+; expected a run folder that every node can read"
    with pytest.raises(rlscope.RlscopeError, match=expected), open_run(folder, divide=on_nodes(two_nodes)):
        pass


def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [worker("e0", "sampler")])
    divide = cluster.on_ray("127.0.0.1:1", pipeline.say_nothing)
    with pytest.raises(rlscope.RlscopeError, match="found no cluster"), open_run(folder, divide=divide):
        pass


def test_verdict_and_recommendation_are_those_of_one_process_though_a_node_is_lost_half_way(two_nodes: Any) -> None:
    def lose_a_node(doing: str) -> None:
        if doing == "pass latency":
            (second,) = two_nodes.worker_nodes
            two_nodes.remove_node(second, allow_graceful=False)

    divided = rlscope.analyze(TRACE, progress=lose_a_node, ray=two_nodes.address)
    whole = json.loads(rlscope.analyze(TRACE).to_json())
    assert whole["recommendation"]["action"] == "change"
    assert whole["actions"]
    assert json.loads(divided.to_json()) == whole
