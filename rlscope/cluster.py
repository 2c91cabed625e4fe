"""Answers the questions of an analysis in shares of the run, on the nodes of a Ray cluster. Ray is imported here alone.

Processes on the nodes open shares of the run, each on one thread, and answer by the same SQL as one process does; who
asked merges the answers. A process that ends is replaced, and its share asked again, on another node if there is one.
"""

import re
import socket
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from rlscope import format as fmt
from rlscope.errors import RlscopeError
from rlscope.trace.distribution import Distribute
from rlscope.trace.files import RUN_FILE
from rlscope.trace.query import ask_share
from rlscope.trace.questions import WORKER, Question, macros_sql, questions
from rlscope.trace.shares import ATTEMPTS, Argument, Lost, LostShareError, Share, Split, plan_shares
from rlscope.trace.store import Divide, OpenShare, StoredRun, open_share

if TYPE_CHECKING:
    from rlscope.trace.compaction import Compaction

Progress = Callable[[str], None]
_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
_HOST_AND_PORT: Final = re.compile(r"(?:ray://)?\[?(?P<host>[^\[\]/]+)\]?:(?P<port>[0-9]{1,5})")
_ANSWERS_WITHIN_S: Final = 10
_STARTS_WITHIN_S: Final = 120
"""For a process on a node to start, on a cluster with a free CPU."""
_ENDS_WITHIN_S: Final = 20
"""For a process to finish the question that it works on, and to remove its temporary files."""
_WHY_CHARACTERS: Final = 200
"""Of what Ray says about a process that ended."""
_ROWS_OF_A_SHARE: Final = 100_000_000
"""Above so many a process takes several shares, so that what fails is tried again in parts."""


class ShareHolder:
    """Opens shares of a run in one process, keeps them open, and answers questions of them."""

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored
        self._open: dict[Share, OpenShare] = {}
        self._stack = ExitStack()

    def about(self) -> dict[str, str]:
        """The versions of what computes the answers here."""
        return versions()

    def sees_run(self) -> bool:
        """Whether the run's folder is there, under the path that it has where the questions come from."""
        return (self._stored.folder / RUN_FILE).is_file()

    def answer(self, share: Share, name: str, arguments: Mapping[str, Argument]) -> pa.Table | RlscopeError:
        """The answer of a share to a question, or the error that says why it has none."""
        try:
            if share not in self._open:
                self._open[share] = self._stack.enter_context(open_share(self._stored, share))
            return ask_share(self._open[share], name, arguments)
        except RlscopeError as error:
            return error

    def close(self) -> None:
        """Close the shares."""
        self._stack.close()


def versions() -> dict[str, str]:
    """The versions of what computes answers, and a checksum of the SQL: only the same ones give the same bits."""
    texts = [macros_sql(), *(question.sql for question in questions().values())]
    return {
        "rlscope": metadata.version("rlscope"),
        "duckdb": metadata.version("duckdb"),
        "queries": f"{zlib.crc32(''.join(texts).encode()):08x}",
    }


class InOneProcess(Split):
    """Answers in shares, one after the other, in this process."""

    def __init__(self, holder: ShareHolder, shares: Sequence[Share]) -> None:
        self._holder = holder
        self._shares = shares

    def answers(self, question: Question, arguments: Mapping[str, Argument]) -> Iterator[pa.Table]:
        """The answers of the shares, in their order."""
        for share in self._shares:
            if share.partition == question.partition:
                answer = self._holder.answer(share, question.name, arguments)
                if isinstance(answer, RlscopeError):
                    raise answer
                yield answer


@dataclass(frozen=True)
class _OneProcess(Divide):
    by_worker: int
    by_sample: int

    @contextmanager
    def __call__(self, stored: StoredRun) -> Generator[Split]:
        """Answer in this process."""
        holder = ShareHolder(stored)
        try:
            yield InOneProcess(holder, plan_shares(stored.workers, stored.tables, self.by_worker, self.by_sample))
        finally:
            holder.close()


def in_one_process(by_worker: int, by_sample: int) -> Divide:
    """What answers in so many shares in this process: what a cluster does, without one."""
    return _OneProcess(by_worker, by_sample)


class Process(NamedTuple):
    """A process on a node."""

    holder: Any
    node: str


class OnRay(Split):
    """Answers in shares, in processes on the nodes of a cluster."""

    def __init__(self, ray: Any, stored: StoredRun, shares: Sequence[Share], count: int, progress: Progress) -> None:
        """count: how many processes to start. Raises RlscopeError for nodes with other versions."""
        self._ray = ray
        self._shares = shares
        self._progress = progress
        self._stored = ray.put(stored)
        self._where: dict[Share, Process] = {}
        """The process that has a share open."""
        self._failed: dict[Share, list[str]] = {}
        """The nodes that a share failed on."""
        self.processes: list[Process] = []
        """Those that run."""
        self._start(count)

    def close(self) -> None:
        """End the processes, when they have removed their temporary files: a run's may be gigabytes."""
        closing = [process.holder.close.remote() for process in self.processes]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_ENDS_WITHIN_S)
        for process in self.processes:
            self._ray.kill(process.holder)
        self.processes = []

    def answers(self, question: Question, arguments: Mapping[str, Argument]) -> Iterator[pa.Table]:
        """The answers of the shares, as they come. Raises LostShareError for one that failed ATTEMPTS times."""
        own = [share for share in self._shares if share.partition == question.partition]
        waiting, running, done = deque(own), dict[Any, tuple[Process, Share]](), list[Share]()
        while waiting or running:
            for process, share in self._assigned(waiting, [process for process, _ in running.values()]):
                running[process.holder.answer.remote(share, question.name, dict(arguments))] = (process, share)
            (ready, *_), _ = self._ray.wait(list(running), num_returns=1)
            process, share = running.pop(ready)
            answer = self._answer(ready, process, share)
            if answer is None:
                waiting.append(share)
                continue
            done.append(share)
            self._progress(_covered(question, own, done))
            yield answer

    def _assigned(self, waiting: deque[Share], busy: Sequence[Process]) -> Iterator[tuple[Process, Share]]:
        """A share for each process that is idle: its own first, else one that no other process has open."""
        if not self.processes:
            self._restart()
        for process in self.processes:
            if process in busy:
                continue
            share = self._next_of(process, waiting)
            if share is not None:
                waiting.remove(share)
                self._where[share] = process
                yield process, share

    def _next_of(self, process: Process, waiting: Sequence[Share]) -> Share | None:
        nodes = {each.node for each in self.processes}
        for share in waiting:
            failed = set(self._failed.get(share, ()))
            if share in self._where:
                if self._where[share] == process:
                    return share
            elif process.node not in failed or nodes <= failed:
                return share
        return None

    def _answer(self, ready: Any, process: Process, share: Share) -> pa.Table | None:
        """The answer; None where the process ended before it gave one. Raises the error that it found instead."""
        try:
            answer = self._ray.get(ready)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            self._forget(process, share, " ".join(str(error).split())[:_WHY_CHARACTERS])
            return None
        if isinstance(answer, RlscopeError):
            raise answer
        return answer

    def _forget(self, process: Process, share: Share, why: str) -> None:
        """A process ended while it answered for a share: start another, unless the share failed too often."""
        failed = self._failed.setdefault(share, [])
        failed.append(process.node)
        self.processes.remove(process)
        self._where = {each: where for each, where in self._where.items() if where != process}
        self._ray.kill(process.holder)
        if len(failed) >= ATTEMPTS:
            raise LostShareError(Lost(share, why))
        self._progress(f"{share.name} is tried again: its process ended")
        self._restart()

    def _start(self, count: int) -> None:
        """Start processes. Raises RlscopeError where one does not, or where it cannot compute the same answers."""
        kind = self._ray.remote(ShareHolder)
        holders = [
            kind.options(scheduling_strategy=strategy, max_restarts=0).remote(self._stored)
            for strategy in self._strategies(count)
        ]
        self.processes += [self._greeted(holder) for holder in holders]

    def _restart(self) -> None:
        """Start a process in the place of one that ended. Raises RlscopeError where none is left and none starts."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._start(1)
                return
            except RlscopeError:
                # Ray may take a node for alive that ended with the process.
                if attempt == ATTEMPTS and not self.processes:
                    raise

    def _greeted(self, holder: Any) -> Process:
        exceptions = self._ray.exceptions
        try:
            calls = [holder.about.remote(), holder.sees_run.remote(), holder.__ray_call__.remote(_node_of_process)]
            theirs, sees_run, node = self._ray.get(calls, timeout=_STARTS_WITHIN_S)
        except exceptions.GetTimeoutError as error:
            raise _refused(f"no process that starts within {_STARTS_WITHIN_S} s", "a CPU for each process") from error
        except exceptions.RayError as error:
            why = " ".join(str(error).split())[-_WHY_CHARACTERS:]
            raise _refused(f"a node on which rlscope does not start ({why})", "rlscope on every node") from error
        if theirs != versions():
            raise _other_versions(theirs, versions(), node)
        if not sees_run:
            raise _no_folder(node)
        return Process(holder, node)

    def _strategies(self, count: int) -> Iterator[Any]:
        """Where to start processes: on nodes where none has ended, if there are any; there, on the emptiest."""
        strategies = self._ray.util.scheduling_strategies
        free = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]}
        ended = {node for nodes in self._failed.values() for node in nodes}
        for process in self.processes:
            if process.node in free:
                free[process.node] -= 1
        for _ in range(count):
            node = max(sorted(free), key=lambda each: (each not in ended, free[each]))
            free[node] -= 1
            yield strategies.NodeAffinitySchedulingStrategy(node, soft=True)


def _node_of_process(_holder: ShareHolder) -> str:
    return _node_id()


def _node_id() -> str:
    return str(_import_ray().get_runtime_context().get_node_id())


def _other_versions(found: Mapping[str, str], expected: Mapping[str, str], node: str) -> RlscopeError:
    return _refused(f"{_listed(found)} on node {node}", _listed(expected))


def _no_folder(node: str) -> RlscopeError:
    return RlscopeError.of(
        "--ray",
        found=f"no such run folder on node {node}",
        expected="a run folder that every node can read under the same path",
        next_step="Copy the run to a shared file system, or leave --ray out.",
    )


def _refused(found: str, expected: str) -> RlscopeError:
    return RlscopeError.of(
        "--ray", found=found, expected=expected, next_step="Install the same rlscope[ray] on every node."
    )


def _listed(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _covered(question: Question, shares: Sequence[Share], done: Sequence[Share]) -> str:
    """How far a question is answered: in GPU time where the shares are of workers."""
    name = question.name.replace("_", " ")
    if question.partition != WORKER:
        return f"{name}: {len(done)} of {len(shares)} shares of samples"
    covered, whole = (sum(share.gpu_ns for share in each) / 1e9 for each in (done, shares))
    return f"{name}: {fmt.gpu_time(covered)} of {fmt.gpu_time(whole)}"


class RayCluster(Divide):
    """A cluster, by its address."""

    def __init__(self, ray: Any, address: str, progress: Progress) -> None:
        self._ray = ray
        self._address = address
        self._progress = progress

    @contextmanager
    def __call__(self, stored: StoredRun) -> Generator[Split]:
        """Start processes on the nodes. Raises RlscopeError for nodes that cannot answer."""
        with self.connected():
            count = self.cpus
            rows = sum(files.rows for files in stored.tables.values())
            shares = plan_shares(stored.workers, stored.tables, max(count, rows // _ROWS_OF_A_SHARE), count)
            split = OnRay(self._ray, stored, shares, min(count, len(shares)), self._progress)
            try:
                yield split
            finally:
                split.close()

    @contextmanager
    def connected(self) -> Generator[None]:
        """Connected to the cluster. Raises RlscopeError where there is none."""
        with _connected(self._ray, self._address):
            yield

    @property
    def cpus(self) -> int:
        """CPUs of the cluster, while it is connected."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @property
    def distribute(self) -> Distribute:
        """Work in tasks on the nodes."""
        return self._each

    def _each(
        self, folder: Path, work: Callable[[_Piece], _Result], pieces: Sequence[_Piece], *, again: bool = True
    ) -> Iterator[_Result | None]:
        with self.connected():
            task = self._ray.remote(_carry_out).options(max_retries=ATTEMPTS - 1 if again else 0)
            waiting = deque(task.remote(versions(), folder, work, piece) for piece in pieces)
            try:
                while waiting:
                    yield self._result(waiting[0])
                    waiting.popleft()
            finally:
                self._end(waiting)

    def _result(self, reference: Any) -> Any:
        try:
            result = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            why = " ".join(str(error).split())[-_WHY_CHARACTERS:]
            raise _refused(f"a node on which rlscope does not work ({why})", "rlscope on every node") from error
        except self._ray.exceptions.RayError:
            return None
        if isinstance(result, _Failed):
            raise result.error
        return result

    def _end(self, references: Sequence[Any]) -> None:
        """End what still runs, and wait until it has: nobody may write into the run once the caller is told."""
        for reference in references:
            self._ray.cancel(reference, force=True)
        if references:
            self._ray.wait(list(references), num_returns=len(references), timeout=_STARTS_WITHIN_S)


class _Failed(NamedTuple):
    """What a piece of work raised."""

    error: RlscopeError | OSError


def _carry_out(expected: Mapping[str, str], folder: Path, work: Callable[[_Piece], _Result], piece: _Piece) -> object:
    """On a node: what comes of a piece of work, or `_Failed`."""
    node = _node_id()
    if versions() != expected:
        return _Failed(_other_versions(versions(), expected, node))
    if not (folder / RUN_FILE).is_file():
        return _Failed(_no_folder(node))
    try:
        return work(piece)
    except (RlscopeError, OSError) as error:
        return _Failed(error)


def on_ray(address: str | None, progress: Progress) -> RayCluster | None:
    """The cluster at an address of `ray.init`; None for none: one process does all.

    Raises RlscopeError where Ray is not installed.
    """
    return None if address is None else RayCluster(_import_ray(), address, progress)


def compact(
    folder: Path, out: Path | None, verify: bool, progress: Progress | None, address: str | None
) -> "Compaction":
    """Compact a run, on the cluster at an address if there is one: `compact_run`, with what that raises."""
    # Who analyses a run on the cluster needs none of it.
    from rlscope.trace.compaction import Processes, compact_run, say_nothing

    say = progress or say_nothing
    cluster = on_ray(address, say)
    if cluster is None:
        return compact_run(folder, out, verify=verify, say=say)
    with cluster.connected():
        on = Processes(cluster.distribute, cluster.cpus)
        return compact_run(folder, out, verify=verify, say=say, on=on)


def _import_ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]

        return ray  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise RlscopeError.of(
            "--ray", found="no ray", expected="Ray installed", next_step="pip install 'rlscope[ray]'"
        ) from error


@contextmanager
def _connected(ray: Any, address: str) -> Generator[None]:
    """Connected to the cluster: a connection that the program has already is used, and left open."""
    if ray.is_initialized():
        yield
        return
    try:
        _check_reachable(address)
        ray.init(address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())[:_WHY_CHARACTERS]
        raise RlscopeError.of(
            f"--ray {address}",
            found=f"no cluster ({why})",
            expected="the address of a running cluster",
            next_step="`ray status` says whether one runs; `--ray local` starts one on this machine.",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError for a host and port that nothing answers at: Ray would try for minutes."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is not None:
        socket.create_connection((found["host"], int(found["port"])), _ANSWERS_WITHIN_S).close()
