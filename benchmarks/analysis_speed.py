"""How long an analysis takes and how much memory, beside one scan of every column of every table by DuckDB.

Generates a run (see `generated_run.py`), then starts a fresh process a round. Each analyses the run, draws its page,
and scans it, in that order, so the peak of the analysis is its own and the ratio is of one process. The last result is
in `analysis_speed.txt`.

    python benchmarks/analysis_speed.py
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypedDict

import duckdb
from generated_run import SAMPLES_STEP, Shape, generate
from rlscope_otel.schema import TABLES

from rlscope.pipeline import analyze
from rlscope.reports.page.html import render

AIM_RATIO: Final = 5
AIM_BYTES: Final = 2_000_000_000
SCAN: Final = "SELECT bit_xor(hash(COLUMNS(*))) FROM read_parquet($files)"
"""Reads, decompresses, decodes and hashes every value of a table, nested ones too, and keeps one number a column."""
PART: Final = "--round-of"


class Cost(TypedDict):
    """What one thing took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    """Most memory that the process had held by then."""


class Round(TypedDict):
    """What one process measured."""

    analyze: Cost
    render: Cost
    scan: Cost
    questions: dict[str, Cost]


def cost_of(work: Callable[[], object]) -> Cost:
    wall_s, cpu_s = time.perf_counter(), cpu_seconds()
    work()
    return {"wall_s": time.perf_counter() - wall_s, "cpu_s": cpu_seconds() - cpu_s, "peak_bytes": peak_bytes()}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def scan(folder: Path) -> None:
    for table in TABLES:
        files = [str(path) for path in sorted((folder / table).glob("*.parquet"))]
        if files:
            duckdb.sql(SCAN, params={"files": files}).fetchall()


class Stopwatch:
    """Told what begins, it knows what each thing before it took."""

    def __init__(self) -> None:
        self.costs: dict[str, Cost] = {}
        self._doing = "opening the run"
        self._wall_s, self._cpu_s = time.perf_counter(), cpu_seconds()

    def __call__(self, doing: str) -> None:
        wall_s, cpu_s = time.perf_counter(), cpu_seconds()
        self.costs[self._doing] = {
            "wall_s": wall_s - self._wall_s,
            "cpu_s": cpu_s - self._cpu_s,
            "peak_bytes": peak_bytes(),
        }
        self._doing, self._wall_s, self._cpu_s = doing, wall_s, cpu_s


def measure_round(folder: Path) -> Round:
    stopwatch = Stopwatch()
    analyses = []
    analyzed = cost_of(lambda: analyses.append(analyze(folder, progress=stopwatch)))
    stopwatch("")
    rendered = cost_of(lambda: render(analyses[0]))
    return {
        "analyze": analyzed,
        "render": rendered,
        "scan": cost_of(lambda: scan(folder)),
        "questions": stopwatch.costs,
    }


def run_round(folder: Path) -> Round:
    command = [sys.executable, __file__, PART, str(folder)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def spread(values: Sequence[float], form: str = "7.2f") -> str:
    return f"{statistics.median(values):{form}}  ({min(values):{form}} .. {max(values):{form}})"


def report(rows: dict[str, int], size_bytes: int, rounds: Sequence[Round]) -> str:
    lines = [
        f"date      {datetime.now(UTC):%Y-%m-%d}",
        f"machine   {os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        f"versions  Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("rlscope", "duckdb", "pyarrow", "polars")),
        "command   python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "run       " + ", ".join(f"{count:,} {table}" for table, count in rows.items() if count),
        f"          {size_bytes / 1e6:,.0f} MB of Parquet",
        f"scan      {SCAN}, once per table",
        f"rounds    {len(rounds)}, each a process of its own: analyze, draw the page, scan; median (least .. most)",
        "",
    ]
    for what, title in (("analyze", "analysis"), ("render", "drawing the page"), ("scan", "scan")):
        for unit in ("wall_s", "cpu_s"):
            lines.append(f"{title:18} {unit:8} {spread([taken[what][unit] for taken in rounds])}")
    for unit in ("wall_s", "cpu_s"):
        ratios = [taken["analyze"][unit] / taken["scan"][unit] for taken in rounds]
        lines.append(f"analysis / scan    {unit:8} {spread(ratios)}   aim: at most {AIM_RATIO}")
    for what, title in (("analyze", "analysis"), ("render", "and page")):
        peaks = [taken[what]["peak_bytes"] / 1e9 for taken in rounds]
        lines.append(f"{title:18} peak GB  {spread(peaks)}   aim: under {AIM_BYTES / 1e9:.0f}")
    lines += ["", f"{'question':28} {'wall_s':>8} {'cpu_s':>8} {'peak GB':>8}"]
    for name in rounds[0]["questions"]:
        costs = [taken["questions"][name] for taken in rounds]
        wall_s, cpu_s = (statistics.median(cost[unit] for cost in costs) for unit in ("wall_s", "cpu_s"))
        peak = statistics.median(cost["peak_bytes"] for cost in costs)
        lines.append(f"{name:28} {wall_s:8.2f} {cpu_s:8.2f} {peak / 1e9:8.2f}")
    return "\n".join(lines)


def measure(folder: Path, shape: Shape, repeats: int) -> str:
    # In a process of its own: a child begins with the peak of its parent.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        rows = pool.submit(generate, folder, shape).result()
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    return report(rows, size_bytes, [run_round(folder) for _ in range(repeats)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000, help=f"size, in steps of {SAMPLES_STEP}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpu-samples", action="store_true", help="also a GPU reading per worker and second")
    parser.add_argument("--out", type=Path, help="where the result goes; printed too")
    parser.add_argument(PART, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.round_of is not None:
        print(json.dumps(measure_round(given.round_of)))
        return
    with tempfile.TemporaryDirectory(prefix="rlscope-bench-") as folder:
        text = measure(Path(folder) / "run", Shape(given.samples, given.seed, given.gpu_samples), given.repeats)
    print(text)
    if given.out is not None:
        target = given.out / "analysis_speed.txt" if given.out.is_dir() else given.out
        target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
