"""What the hooks cost the example pipeline: pairs of runs with and without them, interleaved.

Runs are synchronous with one seed, so that both of a pair do the same work. Wall-clock time per step is noisy on a
shared machine; the processor time of the trainer and the sampler per response token is the steadier figure.

    python benchmarks/pipeline_overhead.py [--pairs 5] [--steps 60]

Needs torch. Writes its figures to `benchmarks/pipeline_overhead.txt`.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

REPOSITORY = Path(__file__).parents[1]
FIGURES = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True, slots=True)
class Cost:
    """One run."""

    step_s: float
    """Wall-clock time from the first batch taken to the last step, per step."""
    sampler_cpu_us_per_token: float
    trainer_cpu_us_per_token: float


def measure(folder: Path, steps: int, hooks: bool) -> Cost:
    """Run the pipeline once."""
    flags = ["--synchronous", "--slots", "64", "--steps", str(steps), "--log-every", "100000"]
    command = [sys.executable, "-m", "examples.pipeline_rl", str(folder), *flags, "--hooks" if hooks else "--no-hooks"]
    subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
    counted = json.loads((folder / "pipeline_summary.json").read_text())
    tokens = counted["response_tokens_trained"]
    return Cost(
        step_s=counted["loop_s"] / counted["steps"],
        sampler_cpu_us_per_token=sum(sampler["cpu_s"] for sampler in counted["samplers"]) / tokens * 1e6,
        trainer_cpu_us_per_token=counted["trainer_cpu_s"] / tokens * 1e6,
    )


def measure_pairs(pairs: int, steps: int) -> list[tuple[Cost, Cost]]:
    """(with, without) per pair; which of the two comes first alternates."""
    measured: list[tuple[Cost, Cost]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(pairs):
            order = (True, False) if pair % 2 == 0 else (False, True)
            costs = {hooks: measure(Path(scratch) / f"{pair}-{hooks}", steps, hooks) for hooks in order}
            measured.append((costs[True], costs[False]))
            print(f"pair {pair + 1} of {pairs}: {costs}", file=sys.stderr)
    return measured


def ratio_line(name: str, unit: str, pairs: list[tuple[float, float]]) -> str:
    """Medians of both, and the median of the paired ratios with their quartiles."""
    ratios = [hooked / plain for hooked, plain in pairs]
    low, _, high = quantiles(ratios, n=4)
    return (
        f"{name:<26} with {median(hooked for hooked, _ in pairs):8.4f} {unit:<9}"
        f" without {median(plain for _, plain in pairs):8.4f} {unit:<9}"
        f" ratio {median(ratios):.4f} (quartiles {low:.4f} to {high:.4f})"
    )


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    pairs = measure_pairs(options.pairs, options.steps)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        f"{options.pairs} pairs of {options.steps} synchronous steps; {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}, load at the end {load}",
        ratio_line("step", "s", [(hooked.step_s, plain.step_s) for hooked, plain in pairs]),
        ratio_line(
            "sampler processor time",
            "us/token",
            [(hooked.sampler_cpu_us_per_token, plain.sampler_cpu_us_per_token) for hooked, plain in pairs],
        ),
        ratio_line(
            "trainer processor time",
            "us/token",
            [(hooked.trainer_cpu_us_per_token, plain.trainer_cpu_us_per_token) for hooked, plain in pairs],
        ),
    ]
    FIGURES.write_text("\n".join(lines) + "\n")
    print(FIGURES.read_text(), end="")


if __name__ == "__main__":
    main()
