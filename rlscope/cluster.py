"""Answers the questions of an analysis on the nodes of a Ray cluster, in shares of the run. Only here is Ray imported.

Actors on the nodes open shares of the run, each on one thread, and answer with the same SQL as a single process. The
driver process merges the answers. Ray places the actors, restarts those that end, and retries their questions.
"""

import re
import socket
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from typing import Any, Final

import pyarrow as pa

from rlscope.errors import RlscopeError
from rlscope.trace.manifest import RUN_FILE
from rlscope.trace.query import ask_share
from rlscope.trace.questions import Question, macros_sql, questions
from rlscope.trace.shares import Argument, Partition, PartitionedRun, plan_shares
from rlscope.trace.store import OpenTables, Partitioner, StoredRun, open_share

Progress = Callable[[str], None]
_HOST_AND_PORT: Final = re.compile(r"(?:ray://)?\[?(?P<host>[^\[\]/]+)\]?:(?P<port>[0-9]{1,5})")
_ANSWERS_WITHIN_S: Final = 10
_STARTS_WITHIN_S: Final = 120
"""Time for the actors to start on a cluster with free CPUs."""
_ENDS_WITHIN_S: Final = 20
"""Time for an actor to finish its question and remove its temporary files."""
_RESTARTS: Final = 2
"""Restarts of an actor. A question is retried as long as its actor restarts: Ray takes time to notice a lost node."""
_WHY_CHARACTERS: Final = 200
"""Length of Ray's reason in an error."""
_ROWS_OF_A_SHARE: Final = 100_000_000
"""Target rows of a share of workers; an actor holds several shares of a larger run."""


class PartitionHolder:
    """Opens shares of a run in one process, keeps them open, and answers questions about them."""

    def __init__(self, stored: StoredRun, expected: Mapping[str, str]) -> None:
        """Store the run. expected: the `versions` of the driver process."""
        self._stored = stored
        self._expected = expected
        self._open: dict[Partition, OpenTables] = {}
        self._stack = ExitStack()

    def check(self) -> RlscopeError | None:
        """Return why this node cannot give the same answers; None if it can."""
        here = versions()
        if here != dict(self._expected):
            return _refused(f"{_listed(here)} on a node", _listed(self._expected))
        if not (self._stored.folder / RUN_FILE).is_file():
            return RlscopeError.of(
                "--ray",
                found=f"no such run folder on node {socket.gethostname()}",
                expected="a run folder that every node can read under the same path",
                next_step="Copy the run to a shared file system, or leave --ray out.",
            )
        return None

    def answer(self, share: Partition, name: str, arguments: Mapping[str, Argument]) -> pa.Table | RlscopeError:
        """Return the answer of a share to a question, or the error if it cannot be answered."""
        try:
            if share not in self._open:
                self._open[share] = self._stack.enter_context(open_share(self._stored, share))
            return ask_share(self._open[share], name, arguments)
        except RlscopeError as error:
            return error

    def close(self) -> None:
        """Close the shares and remove their temporary files."""
        self._stack.close()


def versions() -> dict[str, str]:
    """Return the versions of rlscope and DuckDB and a checksum of the SQL; equal ones give bit-identical answers."""
    texts = [macros_sql(), *(question.sql for question in questions().values())]
    return {
        "rlscope": metadata.version("rlscope"),
        "duckdb": metadata.version("duckdb"),
        "queries": f"{zlib.crc32(''.join(texts).encode()):08x}",
    }


class RayPartitions(PartitionedRun):
    """Answers questions in shares, with actors on the nodes of a cluster."""

    def __init__(
        self, ray: Any, stored: StoredRun, shares: Sequence[Partition], count: int, progress: Progress
    ) -> None:
        """Start `count` actors. Raises RlscopeError if one does not start, or cannot give the same answers."""
        self._ray = ray
        self._shares = shares
        self._progress = progress
        actor = ray.remote(PartitionHolder).options(
            max_restarts=_RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD"
        )
        # Keep a reference, or Ray frees the object: a restarted actor reads it again.
        self._stored = ray.put(stored)
        self._actors = [actor.remote(self._stored, versions()) for _ in range(count)]
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        calls = [actor.check.remote() for actor in self._actors]
        _, late = self._ray.wait(calls, num_returns=len(calls), timeout=_STARTS_WITHIN_S)
        if late:
            raise _refused(f"a process that did not start within {_STARTS_WITHIN_S} s", "a CPU for each process")
        for call in calls:
            fault = self._result(call)
            if fault is not None:
                raise fault

    def close(self) -> None:
        """End the actors after they have removed their temporary files, which may take gigabytes."""
        closing = [actor.close.remote() for actor in self._actors]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_ENDS_WITHIN_S)
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []

    def answers(self, question: Question, arguments: Mapping[str, Argument]) -> Iterator[pa.Table]:
        """Yield the answers of the shares as they arrive. Raises RlscopeError if a share cannot answer."""
        shares = [share for share in self._shares if share.partition == question.partition]
        waiting = [
            self._actors[share.place % len(self._actors)].answer.remote(share, question.name, dict(arguments))
            for share in shares
        ]
        while waiting:
            (ready, *_), waiting = self._ray.wait(waiting, num_returns=1)
            answer = self._result(ready)
            if isinstance(answer, RlscopeError):
                raise answer
            done = len(shares) - len(waiting)
            self._progress(f"{question.name.replace('_', ' ')}: {done} of {len(shares)} shares")
            yield answer

    def _result(self, call: Any) -> Any:
        """Return the result of an actor's call. Raises RlscopeError if the actor ended and was not restarted again."""
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            why = " ".join(str(error).split())[-_WHY_CHARACTERS:]
            raise RlscopeError.of(
                "--ray",
                found=f"a process on a node that ended {_RESTARTS + 1} times ({why})",
                expected="nodes that run the same rlscope, with enough memory",
                next_step="Look at the node's log, or leave --ray out.",
            ) from error


def _refused(found: str, expected: str) -> RlscopeError:
    return RlscopeError.of(
        "--ray", found=found, expected=expected, next_step="Install the same rlscope[ray] on every node."
    )


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


class RayCluster(Partitioner):
    """A Ray cluster at an address."""

    def __init__(self, ray: Any, address: str, progress: Progress) -> None:
        self._ray = ray
        self._address = address
        self._progress = progress

    @contextmanager
    def __call__(self, stored: StoredRun) -> Generator[PartitionedRun]:
        """Start actors on the nodes. Raises RlscopeError if a node cannot answer."""
        with self.connected():
            count = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            rows = sum(files.rows for files in stored.tables.values())
            shares = plan_shares(stored.workers, stored.tables, max(count, rows // _ROWS_OF_A_SHARE), count)
            split = RayPartitions(self._ray, stored, shares, min(count, len(shares)), self._progress)
            try:
                yield split
            finally:
                split.close()

    @contextmanager
    def connected(self) -> Generator[None]:
        """Connect to the cluster. A connection that the program already has is used and stays open.

        Raises RlscopeError if there is no cluster.
        """
        if self._ray.is_initialized():
            yield
            return
        try:
            _check_reachable(self._address)
            self._ray.init(self._address, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())[:_WHY_CHARACTERS]
            raise RlscopeError.of(
                f"--ray {self._address}",
                found=f"no cluster ({why})",
                expected="the address of a running cluster",
                next_step="`ray status` says whether one runs; `--ray local` starts one on this machine.",
            ) from error
        try:
            yield
        finally:
            self._ray.shutdown()


def on_ray(address: str | None, progress: Progress) -> RayCluster | None:
    """Return the cluster at an address for `ray.init`; None if the address is None.

    Raises RlscopeError if Ray is not installed.
    """
    if address is None:
        return None
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise RlscopeError.of(
            "--ray", found="no ray", expected="Ray installed", next_step="pip install 'rlscope[ray]'"
        ) from error
    return RayCluster(ray, address, progress)


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing answers at a host and port: Ray would keep trying for minutes."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is not None:
        socket.create_connection((found["host"], int(found["port"])), _ANSWERS_WITHIN_S).close()
