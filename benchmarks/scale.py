"""How the cost of an analysis grows with rows, files and workers, and what a Ray cluster changes.

Three series, each case in a process of its own, in CPU seconds of all processes:

- rows: generated runs (`generated_run.py`) of ten workers, and of more above 10^8 rows, as few files;
- files and workers: the folder of recorders that still append to their journals (that of `watch_fleet.py`);
- nodes: the smallest run of the first series, and the largest one of `--most-rows-on-nodes`, on a local Ray cluster of
  nodes of one CPU each.

The exponent is that of cost over size between one size and the one before, both without the cost of the smallest run:
1 is linear. What is beyond the largest run is computed from it, and marked so. The last results are in `scale.txt` and
`scale_files.txt`.

    export PYTHONPATH=.
    .venv-frameworks/bin/python benchmarks/scale.py --rows 1e6 1e7 1e8 1e9 --workers --out benchmarks/scale.txt
    .venv-frameworks/bin/python benchmarks/scale.py --rows --workers 10 100 1000 10000 --out benchmarks/scale_files.txt

10^9 rows take 14 GB on disk; `--keep FOLDER` keeps them there, and takes what an earlier call left.
"""

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from analysis_speed import cpu_seconds, peak_bytes
from generated_run import SAMPLES_STEP, Shape, generate
from watch_fleet import START_NS, TABLES, Fleet

from rlscope.pipeline import DRAWN, QUESTIONS, analyze

ROWS_PER_SAMPLE: Final = 12.1
"""Of a generated run: ten engine rows, a sample, a delivery."""
MOST_ROWS_OF_TEN: Final = 10**8
"""Two days of eight engines and two trainers: a larger run has more engines."""
TAILS: Final = 4
FLUSH_NS: Final = 30_000_000_000
"""Small files of each worker and table, where there are many workers."""
LEAST_FILES: Final = 3_000
PARTS: Final = ("opening", "questions", "model", "rules")
COMPUTED_ROWS: Final = (10**9, 10**10)
CASE: Final = "--case"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Phases:
    """Told what begins, it knows the CPU seconds of each part of an analysis."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._part, self._since_s = "opening", cpu_seconds()

    def __call__(self, doing: str) -> None:
        names = {"fitting the model": "model", "evaluating the built-in alert rules": "rules"}
        names |= {name.replace("_", " "): "questions" for name in (*QUESTIONS, *DRAWN)}
        now_s = cpu_seconds()
        self.cpu_s[self._part] += now_s - self._since_s
        self._part, self._since_s = names.get(doing, self._part), now_s


class OtherProcesses:
    """CPU seconds of the processes that this one started, and of theirs; read from /proc while they run."""

    def __init__(self) -> None:
        self._found: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def cpu_s(self) -> float:
        return sum(self._found.values())

    def __enter__(self) -> "OtherProcesses":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            own = {os.getpid()}
            seen = dict(_processes())
            while more := {pid for pid, (parent, _) in seen.items() if parent in own} - own:
                own |= more
            self._found |= {pid: seen[pid][1] for pid in own - {os.getpid()} if pid in seen}


def _processes() -> Iterator[tuple[int, tuple[int, float]]]:
    """Every process: its parent, and its CPU seconds."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(path.parent.name), (int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S)


@contextmanager
def cluster_of(nodes: int) -> Generator[str | None]:
    """The address of a local cluster of so many nodes; None for none."""
    if not nodes:
        yield None
        return
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(nodes - 1):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def analyzed(folder: str, nodes: int) -> dict[str, Any]:
    """What one analysis costs; the cluster is up before it begins."""
    from rlscope.cluster import on_ray

    with cluster_of(nodes) as address, OtherProcesses() as others:
        phases = Phases()
        time.sleep(1.0 if nodes else 0.0)
        before_s, began_s, wall_s = others.cpu_s, cpu_seconds(), time.perf_counter()
        analyze(folder, progress=phases, divide=on_ray(address, phases))
        wall_s, own_s = time.perf_counter() - wall_s, cpu_seconds() - began_s
        phases("")
        nodes_s = others.cpu_s - before_s
    costs = {"wall_s": wall_s, "driver_s": own_s, "nodes_s": nodes_s, "cpu_s": own_s + nodes_s}
    return costs | {"peak_bytes": peak_bytes(), "parts": phases.cpu_s}


def generated(folder: str, rows: float) -> dict[str, Any]:
    copies = max(1, round(rows / MOST_ROWS_OF_TEN))
    samples = max(SAMPLES_STEP, round(rows / copies / ROWS_PER_SAMPLE / SAMPLES_STEP) * SAMPLES_STEP)
    return {"rows": sum(generate(Path(folder), Shape(samples, 1, False, copies=copies)).values())}


def flushed(folder: str, workers: int) -> dict[str, Any]:
    """The small files of so many workers; of few workers as many files as of some more."""
    flushes = max(TAILS, LEAST_FILES // (workers * len(TABLES)))
    Fleet(Path(folder), workers - 1, FLUSH_NS).write_until(START_NS + flushes * FLUSH_NS)
    return {}


WORK: Final = {each.__name__: each for each in (analyzed, generated, flushed)}


def in_process(work: str, *arguments: object) -> dict[str, Any]:
    """What a fresh process found."""
    command = [sys.executable, __file__, CASE, json.dumps([work, *arguments])]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def files_of(folder: Path) -> tuple[int, float]:
    """How many files of tables, and their MB."""
    sizes = [path.stat().st_size for path in folder.glob("*/*-[0-9]*") if path.suffix != ".json"]
    return len(sizes), sum(sizes) / 1e6


def exponents(sizes: Sequence[float], costs: Sequence[float]) -> list[str]:
    """Of each size but the first two, by what is above the cost of the first."""
    found = ["", ""]
    for place in range(2, len(sizes)):
        more, before = costs[place] - costs[0], costs[place - 1] - costs[0]
        grew = math.log(sizes[place] / sizes[place - 1])
        found.append(f"{math.log(more / before) / grew:.2f}" if more > 0 < before else "?")
    return found[: len(sizes)]


def costs(found: Mapping[str, Any]) -> str:
    parts = " ".join(f"{found['parts'][part]:9.1f}" for part in PARTS)
    return f"{found['cpu_s']:8.1f} {found['wall_s']:8.1f} {found['peak_bytes'] / 1e9:8.2f} {parts}"


def kept(folder: Path, size: float) -> tuple[Path, int]:
    """A generated run and its rows, made unless it is there whole."""
    run, made = folder / f"rows-{size:.0f}", folder / f"rows-{size:.0f}.json"
    if not made.exists():
        shutil.rmtree(run, ignore_errors=True)
        made.write_text(json.dumps(in_process("generated", str(run), size)))
    return run, json.loads(made.read_text())["rows"]


def by_rows(folder: Path, given: argparse.Namespace) -> Iterator[str]:
    titles = " ".join(f"{part:>9}" for part in PARTS)
    sizes_of = f"{'rows':>14} {'workers':>7} {'files':>6} {'MB':>8}"
    yield f"{sizes_of} {'cpu_s':>8} {'wall_s':>8} {'peak_GB':>8} {titles}  exponent"
    sizes: Sequence[float] = given.rows
    divided = {sizes[0], max((size for size in sizes if size <= given.most_rows_on_nodes), default=sizes[0])}
    measured: list[tuple[int, float]] = []
    on_nodes: list[str] = []
    for size in sizes:
        run, rows = kept(folder, size)
        found = in_process("analyzed", str(run), 0)
        measured.append((rows, found["cpu_s"]))
        files, megabytes = files_of(run)
        exponent = exponents(*zip(*measured, strict=True))[-1]  # type: ignore[arg-type]
        workers = len(list(run.glob("workers/*.json")))
        yield f"{rows:14,} {workers:7} {files:6,} {megabytes:8,.0f} {costs(found)}  {exponent:>8}"
        if size in divided:
            on_nodes += [_on_nodes(run, rows, count, found) for count in given.nodes]
        if given.keep is None:
            shutil.rmtree(run)
    (least, least_s), (rows, cpu_s) = measured[0], measured[-1]
    for more in COMPUTED_ROWS if least < rows else ():
        if more > 1.1 * rows:
            computed_s = cpu_s + (cpu_s - least_s) * (more - rows) / (rows - least)
            yield f"{more:14,} {'':7} {'':6} {'':8} {computed_s:8.0f}  computed, on the line from the first to the last"
    if on_nodes:
        yield ""
        yield f"{'rows':>14} {'nodes':>6} {'cpu_s':>8} {'driver_s':>9} {'nodes_s':>8} {'wall_s':>8} of_one_process"
        yield from on_nodes


def _on_nodes(run: Path, rows: int, nodes: int, alone: Mapping[str, Any]) -> str:
    found = in_process("analyzed", str(run), nodes)
    shares = f"{found['driver_s']:9.1f} {found['nodes_s']:8.1f} {found['wall_s']:8.1f}"
    return f"{rows:14,} {nodes:6} {found['cpu_s']:8.1f} {shares} {found['wall_s'] / alone['wall_s']:11.2f} wall"


def by_workers(folder: Path, sizes: Sequence[int]) -> Iterator[str]:
    titles = " ".join(f"{part:>9}" for part in PARTS)
    sizes_of = f"{'workers':>8} {'files':>8} {'MB':>7}"
    yield f"{sizes_of} {'cpu_s':>8} {'wall_s':>8} {'peak_GB':>8} {titles}"
    for workers in sizes:
        run = folder / f"workers-{workers}"
        in_process("flushed", str(run), workers)
        files, megabytes = files_of(run)
        small = in_process("analyzed", str(run), 0)
        yield f"{workers:8,} {files:8,} {megabytes:7.1f} {costs(small)}"
        shutil.rmtree(run)


def report(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    names = ("duckdb", "polars", "pyarrow", "rlscope", *(("ray",) if given.nodes else ()))
    yield f"date      {datetime.now(UTC):%Y-%m-%d}"
    yield f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()}; load {os.getloadavg()[0]:.1f}"
    yield f"versions  Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}"
    asked = ["FOLDER" if before == "--keep" else each for before, each in pairwise(["", *sys.argv[1:]])]
    yield "command   python benchmarks/scale.py " + " ".join(asked)
    yield "columns   CPU of all processes, wall, and most memory of the asking one; then its CPU by part"
    series: dict[str, Iterator[str]] = {}
    if given.rows:
        series["rows"] = by_rows(given.keep or folder, given)
    if given.workers:
        series["journals and workers"] = by_workers(folder, given.workers)
    for title, lines in series.items():
        yield ""
        yield title
        yield from lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="*", default=[1e6, 1e7])
    parser.add_argument("--workers", type=int, nargs="*", default=[10, 100, 1_000])
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 2], help="of one CPU each; needs Ray")
    parser.add_argument("--most-rows-on-nodes", type=float, default=1e8)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where generated runs are, and stay")
    parser.add_argument("--out", type=Path, help="where the result goes; printed too")
    parser.add_argument(CASE, type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        work, *arguments = given.case
        print(json.dumps(WORK[work](*arguments)))
        return
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rlscope-scale-") as folder:
        for line in report(given, Path(folder)):
            print(line, flush=True)
            lines.append(line)
            if given.out is not None:
                given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
