"""What a kill costs: rows lost, read twice or unreadable, by the phase of recording in which it came.

A recorder of numbered rows is killed by SIGKILL before, after or in the middle of a call of the operating system, or at
a random moment. These calls cover every phase of a flush and of closing a journal, while the recorder runs and while it
stops. Then the folder is opened as an analysis opens it. All rows up to the last one on disk must be there, once, and
nothing may be missing by the worker's own count.

A power cut is simulated on folders that were left so: an open journal is cut at a random byte, or its end is zeros. The
whole batches before that must be there, once, and the others must be named as missing.

The seconds lost are those of a machine under the load that is printed: a recorder that waits for the processor flushes
late. Prints its figures and writes them to `kills.txt`; exits with 1 if one of these does not hold.

    python -m benchmarks.kills [--kills 200] [--cuts 200] [--rates 50000 500] [--at-once 8]
"""

import argparse
import json
import mmap
import os
import platform
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlscope_otel.journal import SUFFIX, SealedBatch, head_length, whole_batches

REPOSITORY: Final = Path(__file__).parents[1]
FIGURES: Final = Path(__file__).with_suffix(".txt")
JOURNAL_BYTES: Final = {50_000: 4_000_000, 500: 120_000}
"""Size at which journals are closed, by rate: every second or every other flush."""
LIFE_S: Final = (2.5, 9.0)
LONGEST_S: Final = 240.0
"""A recorder that did not reach its phase by then is killed anyway."""
HANDED: Final = struct.Struct("qq")
"""Number of rows handed to the recorder, and the time in the last of them."""


class Phase(NamedTuple):
    """A call of the operating system by its function, the file that it is about, and where in it the kill comes."""

    function: str
    file: str
    place: str

    def __str__(self) -> str:
        return f"{self.place} {self.function} of {self.file}" if self.file else self.place


MOMENT: Final = Phase("", "", "a random moment")
PHASES: Final = (
    Phase("open", "a journal", "after"),
    Phase("pwrite", "a journal", "within"),
    Phase("pwrite", "a journal", "after"),
    Phase("open", "a Parquet part", "after"),
    Phase("write", "a Parquet part", "within"),
    Phase("fsync", "a Parquet part", "before"),
    Phase("fsync", "a Parquet part", "after"),
    Phase("open", "a worker file", "after"),
    Phase("replace", "a worker file", "before"),
    Phase("replace", "a worker file", "after"),
    Phase("replace", "a Parquet part", "before"),
    Phase("replace", "a Parquet part", "after"),
    Phase("fsync", "a folder", "after"),
    Phase("unlink", "a journal", "before"),
    Phase("unlink", "a journal", "after"),
)


class Order(NamedTuple):
    """One recorder to be killed."""

    folder: Path
    rate: int
    phase: Phase
    nth: int
    """The kill comes at this call of the phase."""
    life_s: float
    """Until the kill at a random moment, or until the recorder stops."""
    stops: bool
    """Whether only calls while it stops count."""


def kind_of(name: str) -> str:
    """Return the file that a call is about, in the words of the phases."""
    if name.endswith(".arrows"):
        return "a journal"
    if "/workers/" in name:
        return "a worker file"
    return "a Parquet part" if ".parquet" in name else "a folder"


class Trap:
    """Kills this process at a call of the operating system."""

    def __init__(self, phase: Phase, nth: int) -> None:
        self.is_set = False
        self._phase = phase
        self._left = nth
        self._names: dict[int, str] = {}
        for name in ("open", "pwrite", "write", "fsync", "replace", "unlink"):
            setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # whatever the function has
            first = arguments[0]
            path = self._names.get(first, "") if isinstance(first, int) else str(first)
            if self._is_due(name, path):
                if self._phase.place == "within":
                    arguments = (first, bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
                if self._phase.place != "before":
                    function(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)
            found = function(*arguments, **options)
            if name == "open":
                self._names[found] = path
            return found

        return call

    def _is_due(self, name: str, path: str) -> bool:
        if not self.is_set or self._phase[:2] != (name, kind_of(path)):
            return False
        self._left -= 1
        return self._left == 0


def be_killed(arguments: Sequence[str]) -> None:
    """Record numbered rows until the kill. This is the recorder's own process."""
    import rlscope_otel
    from rlscope_otel import open_journal

    folder, rate, function, file, place, nth, life_s, stops = arguments
    trap = Trap(Phase(function, file, place), int(nth))
    handed = mmap.mmap(os.open(f"{folder}.handed", os.O_RDWR), HANDED.size)
    open_journal._FULL_BYTES = JOURNAL_BYTES[int(rate)]
    run = rlscope_otel.start_run(folder, "sampler", "w0")
    trap.is_set = stops == "0"
    number, began_s = 0, time.monotonic()
    burst = max(1, int(rate) // 500)
    while stops == "0" or time.monotonic() - began_s < float(life_s):
        for _ in range(burst):
            now_ns = time.time_ns()
            run.engine_step(now_ns, now_ns + 1, decode_tokens=number)
            number += 1
            HANDED.pack_into(handed, 0, number, now_ns)
        time.sleep(max(0.0, began_s + number / int(rate) - time.monotonic()))
    trap.is_set = True
    run.stop(30.0)


class Outcome(NamedTuple):
    """What an analysis finds after a kill."""

    order: Order
    is_reached: bool
    """Whether the recorder was killed at its phase, and neither ended nor had to be ended."""
    handed: int
    read: int
    lost_s: float
    """From the last row that was read to the last that the recorder was given; 0 if no row was read."""
    problems: tuple[str, ...]


def killed(order: Order) -> Outcome:
    """Start a recorder, wait for its death, and read what it left."""
    handed = order.folder.with_suffix(".handed")
    handed.write_bytes(bytes(HANDED.size))
    values = (order.folder, order.rate, *order.phase, order.nth, order.life_s, int(order.stops))
    command = [sys.executable, "-m", "benchmarks.kills", "--be-killed", *map(str, values)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    began_s = time.monotonic()
    limit_s = order.life_s if order.phase == MOMENT else LONGEST_S
    while process.poll() is None and time.monotonic() - began_s < limit_s + 2 * (order.phase == MOMENT):
        time.sleep(0.02)
    is_reached = order.phase == MOMENT or process.poll() == -signal.SIGKILL
    process.kill()
    said = process.communicate()[1]
    count, last_ns = HANDED.unpack(handed.read_bytes())
    return judged(order, is_reached, count, last_ns, said)


def judged(order: Order, is_reached: bool, handed: int, last_ns: int, said: str) -> Outcome:
    """Compare what an analysis reads with what the recorder was given."""
    if not (order.folder / "run.json").exists():
        return Outcome(order, False, handed, 0, 0.0, ())
    found = read(order.folder)
    problems = [*said.splitlines(), *found.problems]
    if found.rows != found.distinct or (found.rows and (found.first, found.last) != (0, found.rows - 1)):
        problems.append(f"{found.rows} rows, {found.distinct} different, {found.first} to {found.last}")
    lost_s = 0.0 if found.last_ns is None else (last_ns - found.last_ns) / 1e9
    return Outcome(order, is_reached, handed, found.rows, max(0.0, lost_s), tuple(problems))


class Read(NamedTuple):
    """Numbered rows as an analysis reads them."""

    rows: int
    distinct: int
    first: int | None
    last: int | None
    last_ns: int | None
    missing: int
    """Rows that are named as missing."""
    problems: tuple[str, ...]


def read(folder: Path) -> Read:
    """Open a run folder as an analysis does."""
    from rlscope.trace.store import open_run

    with open_run(folder) as run:
        columns = "count(*), count(DISTINCT decode_tokens), min(decode_tokens), max(decode_tokens), max(start_ns)"
        rows, distinct, *ends = run.connection.sql(f"SELECT {columns} FROM engine_steps").fetchall()[0]
        rest = [f"{each.path}: {each.why}" for each in run.skipped_files]
        problems = (*rest, *map(str, run.completeness.gaps), *run.gaps)
        return Read(rows, distinct, ends[0], ends[1], ends[2], run.completeness.missing_rows, problems)


def orders(folder: Path, rate: int, kills: int, chance: random.Random) -> Iterator[Order]:
    """Every phase as often, while recording and while stopping, and a quarter at random moments."""
    for number in range(kills):
        phase = MOMENT if number % 4 == 3 else PHASES[(number // 4 * 3 + number % 4) % len(PHASES)]
        stops = phase != MOMENT and number // 4 % 2 == 1
        nth = 1 if stops else chance.randint(1, 3)
        yield Order(folder / f"{rate}-{number}", rate, phase, nth, chance.uniform(*LIFE_S), stops)


def batches_of(content: bytes) -> list[SealedBatch]:
    """Return the whole batches of a journal."""
    length = head_length(content) or 0
    return list(whole_batches(content, length, zlib.crc32(content[:length])))


def has_batches(folder: Path) -> bool:
    """Return whether the last file of a folder is a journal with a batch, and no Parquet file replaces it."""
    last = max(folder.glob("engine_steps/[!.]*"), default=None)
    return last is not None and last.suffix == SUFFIX and bool(batches_of(last.read_bytes()))


def cut(folder: Path, target: Path, chance: random.Random) -> str | None:
    """Cut the last open journal of a copy of a run folder, and read it. None if it is read right."""
    shutil.copytree(folder, target)
    path = max((target / "engine_steps").glob("*.arrows"))
    content = path.read_bytes()
    at = chance.randrange(len(content))
    left = content[:at] + bytes(chance.choice((0, 1, 4096, len(content) - at)))
    path.write_bytes(left)
    batches = batches_of(content)
    whole = [batch.first_row + batch.rows for batch in batches if left[: batch.end] == content[: batch.end]]
    rows = whole[-1] if whole else batches[0].first_row
    counted = json.loads((target / "workers/w0.json").read_text())["rows"]["engine_steps"]
    found = read(target)
    is_right = found.rows == found.distinct == rows and found.last in (rows - 1, None)
    is_right &= found.missing == max(0, counted - rows)
    return None if is_right else f"cut at byte {at:,} of {len(content):,}, {rows} rows before it, {counted}: {found}"


def lines_of(rate: int, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the figures of one rate."""
    reached = [each for each in outcomes if each.is_reached]
    lost_s = [each.lost_s for each in reached]
    yield ""
    yield f"{len(reached)} kills at {rate:,} rows/s, {sum(each.handed for each in reached):,} rows given"
    yield f"    lost: {statistics.median(lost_s):.2f} s in the median, {max(lost_s):.2f} s at most"
    wrong = [each for each in outcomes if each.problems]
    yield f"    folders with a row that is missing, unreadable or there twice: {len(wrong)}"
    yield f"    {len(outcomes) - len(reached)} recorders ended before they were killed: not counted"
    by_phase: dict[str, list[float]] = defaultdict(list)
    for each in reached:
        by_phase[str(each.order.phase)].append(each.lost_s)
    for phase, own in by_phase.items():
        yield f"    {len(own):4} {phase:<40} {max(own):5.2f} s at most"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--rates", type=int, nargs="+", default=[50_000, 500])
    parser.add_argument("--at-once", type=int, default=8, help="recorders at the same time")
    parser.add_argument("--be-killed", nargs=8, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_killed:
        be_killed(options.be_killed)
        return 0
    chance, problems = random.Random(0), list[str]()
    lines = [
        f"command: python -m benchmarks.kills {' '.join(sys.argv[1:])}".rstrip(),
        f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}; flushes every 2 s",
    ]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, ThreadPoolExecutor(options.at_once) as pool:
        left: list[Path] = []
        for rate in options.rates:
            outcomes = list(pool.map(killed, orders(Path(name), rate, options.kills, chance)))
            lines += lines_of(rate, outcomes)
            problems += [f"{each.order.phase}: {' '.join(each.problems)}" for each in outcomes if each.problems]
            left += [each.order.folder for each in outcomes if has_batches(each.order.folder)]
        cuts = [cut(chance.choice(left), Path(name) / f"cut-{number}", chance) for number in range(options.cuts)]
        wrong = [each for each in cuts if each is not None]
        lines += [
            "",
            "seconds lost count the time that recorders waited for a processor of the machine under this load",
        ]
        lines += ["", f"{len(cuts)} journals cut at a random byte, some followed by zeros:"]
        lines += [f"    the whole batches before it once, and the rest named as missing: {len(cuts) - len(wrong)}"]
        problems += wrong
    lines += ["", *(f"PROBLEM: {problem}" for problem in problems)] if problems else ["", "no problem"]
    print(text := "\n".join(lines) + "\n")
    FIGURES.write_text(text)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
