"""Does `rlscope compare` name the one thing that was changed between two recordings of a real pipeline?

Each pair is two recordings of `examples/pipeline_rl` that differ by one flag, made one after the other on this machine.
What is right is written beside each: the setting or the measured cause that must be the largest, with the direction of
its share. Where the analysis of the first run recommended the change, what it promised stands beside what came.

    python benchmarks/comparison_changes.py [--steps 100] [--keep FOLDER] [--only WORDS]

--only records the pairs again whose name has these words, and leaves the figures of the others as they are.
Needs torch and two idle cores. Writes its figures to `benchmarks/comparison_changes.txt`.
"""

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlscope.comparison.facts import run_of
from rlscope.comparison.runs import Pair, compare_runs
from rlscope.pipeline import analyze

FIGURES: Final = Path(__file__).with_suffix(".txt")
REPOSITORY: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Change:
    """One flag, before and after; the others are the same."""

    name: str
    right: frozenset[str]
    """Names of the cause that may be the largest: a setting, or what it changes that was measured."""
    common: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


CHANGES: Final = (
    Change(
        "an engine runs 32 requests, not 8", frozenset({"max_running"}),
        ("--samplers", "2", "--slow-sampler", "3"), ("--slots", "8"), ("--slots", "32"),
    ),
    Change(
        "training twice as fast", frozenset({"trainer_speed"}),
        (), ("--slow-trainer", "6"), ("--slow-trainer", "3"),
    ),
    Change(
        "engines twice as fast", frozenset({"engine_speed"}),
        (), ("--slow-sampler", "6"), ("--slow-sampler", "3"),
    ),
    Change(
        "responses of at most 48 tokens, not 96", frozenset({"max_output_tokens", "response_lengths"}),
        ("--slow-sampler", "3"), ("--response-cap", "96"), ("--response-cap", "48"),
    ),
)  # fmt: skip


def recorded(folder: Path, steps: int, flags: tuple[str, ...]) -> Path:
    """Record one run of the pipeline. Raises CalledProcessError when it fails."""
    command = [sys.executable, "-m", "examples.pipeline_rl", str(folder), "--steps", str(steps), "--log-every", "1000"]
    subprocess.run([*command, *flags], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    return folder


def compared(change: Change, folder: Path, steps: int) -> Pair:
    """Record both runs of a change and compare them."""
    place = folder / change.name.replace(" ", "-").replace(",", "")
    before, after = (
        run_of(analyze(recorded(place / which, steps, (*change.common, *flags))), which)
        for which, flags in (("before", change.before), ("after", change.after))
    )
    return compare_runs(before, [after]).pairs[0]


def line(change: Change, pair: Pair) -> str:
    """What came, what was named, and whether that is right."""
    rate, promise = pair.differences.row("tokens_per_s"), pair.attribution.promise
    largest = next(iter(pair.attribution.causes), None)
    assert rate.change is not None
    interval = "no interval" if rate.low is None else f"{rate.low:+.0%} to {rate.high:+.0%}"
    named = "nothing" if largest is None else largest.name
    alone = None if largest is None or not rate.is_significant else largest.alone_ratio
    share = "" if alone is None else f", {math.log1p(alone) / math.log1p(rate.change):.0%} of the change"
    verdict = "right" if named in change.right else "WRONG"
    if largest is None and not rate.is_significant:
        verdict = "no significant change, and none is claimed"
    kept = ""
    if promise is not None:
        said = f"{promise.gain_ratio.low:+.0%} to {promise.gain_ratio.high:+.0%}"
        outcome = "kept" if promise.is_kept else f"missed by {promise.missed_by_ratio:+.0%}"
        kept = f"; action {promise.rank} promised {said}: {outcome}"
    return f"{change.name:<40} {rate.change:+7.1%} ({interval})  {verdict}: {named}{share}{kept}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of each recording (default: 100)")
    parser.add_argument("--keep", type=Path, help="where the recordings stay")
    parser.add_argument("--only", default="", help="record the pairs again whose name has these words")
    given = parser.parse_args()
    wanted = [change for change in CHANGES if given.only in change.name]
    if not wanted:
        parser.error(f"no pair has {given.only!r} in its name: {', '.join(change.name for change in CHANGES)}")
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for change in wanted:
            found[change.name] = line(change, compared(change, given.keep or Path(scratch), given.steps))
            print(found[change.name], flush=True)
    kept = FIGURES.read_text(encoding="utf-8").splitlines() if given.only and FIGURES.exists() else []
    head = [
        f"command: python benchmarks/comparison_changes.py --steps {given.steps}",
        f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "",
    ]
    lines = [found.get(change.name) or _line_of(change, kept) for change in CHANGES]
    FIGURES.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")


def _line_of(change: Change, kept: list[str]) -> str:
    return next((each for each in kept if each.startswith(change.name)), f"{change.name:<40} not recorded")


if __name__ == "__main__":
    main()
