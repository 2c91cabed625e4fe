"""A long time of recording with kills and restarts at random: no row lost or doubled, and memory that stays flat.

Three kinds of process record at once. The journals of the last two are closed every few seconds:

- the example pipeline, which is ended at a random moment in a random way and started anew, in another folder;
- a lodger, which records numbered rows into one folder, is ended in the same ways and started anew under its name;
- a steady recorder, which is never ended: its memory in the last quarter of the time against that in the second.

After each end the folder is read as an analysis reads it. Every row that a worker file counts must be there, once, and
the numbers of a lodger must be without a gap. Prints its figures and writes them to `soak.txt`; exits with 1 if one of
these does not hold.

    python -m benchmarks.soak --minutes 60 [--seed 0] [--no-pipeline]

The pipeline needs torch.
"""

import argparse
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rlscope_otel.schema import TABLES

from rlscope.trace.completeness import Completeness, FileCheck
from rlscope.trace.files import list_table
from rlscope.trace.manifest import read_manifest
from rlscope.trace.worker_files import read_workers
from tests.journals import rows_in

REPOSITORY: Final = Path(__file__).parents[1]
FIGURES: Final = Path(__file__).with_suffix(".txt")
JOURNAL_BYTES: Final = 200_000
"""Size at which the journals of the lodger and of the steady recorder are closed."""
ENDINGS: Final = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGKILL of one process": signal.SIGKILL}
LIFE_S: Final = (4.0, 40.0)
LEAST_MINUTES: Final = 10
"""Below that the memory is shown and not judged."""
GROWTH_ALLOWED: Final = 1.05
"""Of the steady recorder's memory: what a median of samples may differ by."""
RECORDER: Final = f"""
import sys, time, rlscope_otel
from rlscope_otel import open_journal
open_journal._FULL_BYTES = {JOURNAL_BYTES}
run = rlscope_otel.start_run(sys.argv[1], "sampler", sys.argv[2])
pause_s, number = float(sys.argv[3]), 0
while True:
    for _ in range(20):
        run.engine_step(number, number + 1, running=number % 50)
        number += 1
    sample = run.sample(f"{{run.worker_id}}/{{number}}")
    sample.tokens(number % 200 + 1, number // 1000)
    sample.finish()
    with run.wait("samples"):
        time.sleep(pause_s)
"""


class Checked(NamedTuple):
    """What an analysis makes of a folder."""

    rows: int
    files: int
    completeness: Completeness
    gaps: int
    """Numbers of engine rows that are not in order."""


def checked(folder: Path, numbered: bool) -> Checked:
    """Read all files and counts and, where rows are numbered, the numbers."""
    workers, _ = read_workers(folder)
    check = FileCheck(folder, read_manifest(folder).run_id, workers)
    tables = {table: check.check(table, list_table(folder, table)[0]) for table in TABLES}
    numbers: dict[str, list[int]] = {}
    for file in tables["engine_steps"].files if numbered else ():
        for row in rows_in(file.path):
            numbers.setdefault(row["worker_id"], []).append(row["start_ns"])
    gaps = sum(number != at for own in numbers.values() for at, number in enumerate(own))
    rows = sum(table.rows for table in tables.values())
    files = sum(len(table.files) for table in tables.values())
    return Checked(rows, files, check.completeness(), gaps)


class Recorded:
    """A process, with its children, that records into a folder."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, chance: random.Random) -> None:
        self.name = name
        self.folder = folder
        self.until_s = time.monotonic() + chance.uniform(*LIFE_S)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        """Whether its time has come, or it ended by itself."""
        return time.monotonic() >= self.until_s or self.process.poll() is not None

    def end(self, ending: str, chance: random.Random) -> str:
        """End it in one of the ways; returns what it wrote to its error output."""
        pids = [self.process.pid]
        if ending == "SIGKILL of one process":
            pids = [chance.choice(_children(self.process.pid) or pids)]
        for pid in pids:
            try:
                if ending == "SIGKILL":
                    os.killpg(pid, signal.SIGKILL)
                else:
                    os.kill(pid, ENDINGS[ending])
            except ProcessLookupError:
                pass
        try:
            return self.process.communicate(timeout=60)[1]
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return f"{self.name} had to be killed 60 s after {ending}\n" + self.process.communicate()[1]


def _children(pid: int) -> list[int]:
    """The processes that record: those that a process started, without the tracker of resources."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in found}
    return [child for child, command in commands.items() if b"spawn_main" in command]


def _unwritten_s(folder: Path, at_ns: int) -> float:
    """Seconds from the last flush of the worker that started last to a time."""
    workers, _ = read_workers(folder)
    youngest = max(workers, key=lambda worker: worker.started_ns)
    return (at_ns - youngest.last_flush_ns) / 1e9


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB of 2^20 bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Soak:
    """The processes of one soak and what came of them."""

    def __init__(self, folder: Path, seed: int, with_pipeline: bool) -> None:
        self.problems: list[str] = []
        self.ended: Counter[str] = Counter()
        self.rows = 0
        self.memory_mb: list[float] = []
        self.lost_s: list[float] = []
        """How long before it was killed each one had flushed last."""
        self._folder = folder
        self._chance = random.Random(seed)
        self._lives = 0
        self._steady = self._recorder("steady", folder / "steady", 0.005)
        self._steady.until_s = float("inf")
        self._ending = [self._recorder("lodger", folder / "lodger", 0.01)]
        self._ending += [self._pipeline()] if with_pipeline else []

    def run(self, minutes: float) -> None:
        """Let it all happen."""
        end_s = time.monotonic() + 60 * minutes
        while time.monotonic() < end_s:
            time.sleep(0.5)
            self.memory_mb.append(resident_mb(self._steady.process.pid))
            self._ending = [self._next(each) if each.is_over else each for each in self._ending]
        for each in (*self._ending, self._steady):
            self._finish(each, "SIGTERM")

    def _recorder(self, name: str, folder: Path, pause_s: float) -> Recorded:
        command = [sys.executable, "-c", RECORDER, str(folder), name, str(pause_s)]
        return Recorded(name, command, folder, self._chance)

    def _pipeline(self) -> Recorded:
        self._lives += 1
        folder = self._folder / f"pipeline-{self._lives}"
        command = [sys.executable, "-m", "examples.pipeline_rl", str(folder), "--steps", "100000", "--samplers", "1"]
        return Recorded("pipeline", command, folder, self._chance)

    def _next(self, recorded: Recorded) -> Recorded:
        self._finish(recorded, self._chance.choice(list(ENDINGS)))
        if recorded.name == "pipeline":
            return self._pipeline()
        return self._recorder(recorded.name, recorded.folder, 0.01)

    def _finish(self, recorded: Recorded, ending: str) -> None:
        at_ns = time.time_ns()
        errors = recorded.end(ending, self._chance)
        self.ended[f"{recorded.name}, {ending}"] += 1
        # That it records under the next free name is what a restarted worker is to say.
        said = [line for line in errors.splitlines() if "rlscope" in line and "already exists" not in line]
        if said or "had to be killed" in errors:
            self.problems.append(f"{recorded.name} after {ending}: {' '.join(said) or errors[-500:]}")
        if not (recorded.folder / "run.json").exists():
            return
        if ending == "SIGKILL":
            self.lost_s.append(_unwritten_s(recorded.folder, at_ns))
        found = checked(recorded.folder, numbered=recorded.name != "pipeline")
        self.rows += found.rows if recorded.name == "pipeline" else 0
        # A worker that was killed while it started has counted nothing yet, and no more is wrong with it.
        if found.completeness.state == "incomplete" or found.gaps:
            self.problems.append(f"{recorded.folder.name} after {ending}: {found}")


def figures(soak: Soak, minutes: float, folder: Path) -> list[str]:
    """The lines of the result. Adds to the problems what the memory shows."""
    quarter = len(soak.memory_mb) // 4
    before, after = (statistics.median(soak.memory_mb[at : at + quarter]) for at in (quarter, 3 * quarter))
    if minutes >= LEAST_MINUTES and after > before * GROWTH_ALLOWED:
        soak.problems.append(f"the steady recorder grew from {before:.1f} to {after:.1f} MB")
    lines = [
        f"command: python -m benchmarks.soak {' '.join(sys.argv[1:])}",
        f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        f"{minutes:g} minutes, journals closed at {JOURNAL_BYTES / 1e3:g} kB",
        "",
        *(f"ended {count:>5} times: {what}" for what, count in sorted(soak.ended.items())),
    ]
    for name in ("lodger", "steady"):
        found = checked(folder / name, numbered=True)
        workers = len(list((folder / name / "workers").glob("*.json")))
        lines.append(f"{name}: {found.rows:,} rows of {workers} workers in {found.files:,} files")
    lines.append(f"pipeline: {soak.rows:,} rows")
    if soak.lost_s:
        lost = f"{statistics.median(soak.lost_s):.2f} s in the median, {max(soak.lost_s):.2f} s at most"
        lines.append(f"lost by {len(soak.lost_s)} SIGKILLs since the last flush: {lost}")
    lines.append(f"memory of the steady recorder: {before:.1f} MB in the second quarter, {after:.1f} MB in the last")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-pipeline", action="store_true", help="only the recorders, which need no torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        soak = Soak(Path(name), options.seed, not options.no_pipeline)
        soak.run(options.minutes)
        lines = figures(soak, options.minutes, Path(name))
    lines += ["", *(f"PROBLEM: {problem}" for problem in soak.problems)] if soak.problems else ["", "no problem"]
    print(text := "\n".join(lines) + "\n")
    FIGURES.write_text(text)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
