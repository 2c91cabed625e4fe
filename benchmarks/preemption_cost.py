"""What preemptions cost: as a run counts it and as rlscope predicts it, against the simulator of single tokens.

Systems whose KV cache holds fewer requests than the engines run are recorded at one limit of running requests; the
cost is counted from the trace, predicted for the same limit and for twice that, and compared with what the simulator
counts itself. `full` is the share of the requests that the cache holds on average.

    python benchmarks/preemption_cost.py

Writes its figures to `benchmarks/preemption_cost.txt`.
"""

import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from prediction_truth import true_system
from token_simulator import Layout, World, simulate_world
from token_simulator.cases import PLAIN

from rlscope.model.analytic.engine_time import sampling_of
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.layouts import Forecast, Preemption
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import what_if
from rlscope.pipeline import analyze

FIGURES = Path(__file__).with_suffix(".txt")
STEPS = 60
TODAY = Layout(4, 4, 32)
SYSTEMS = (
    ("prompts ride on decode passes, full 0.8", True, 0.8),
    ("prompts ride on decode passes, full 1.0", True, 1.0),
    ("prompts have passes of their own, full 0.8", False, 0.8),
)


@dataclass(frozen=True, slots=True)
class Truth:
    """What the simulator counted."""

    lost: Preemption
    tokens_per_s: float


def world_of(mixes_prefill: bool, full_ratio: float) -> World:
    """Samplers are the slower side, and a prompt token takes long enough to matter."""
    passes = replace(PLAIN.passes, mixes_prefill=mixes_prefill, prefill_tokens_per_s=15_000.0)
    training = replace(PLAIN.training, tokens_per_gpu_s=12_000.0)
    limits = replace(PLAIN.limits, staleness_policy="none", max_staleness=None)
    roomy = replace(PLAIN, passes=passes, training=training, limits=limits, kv_capacity_tokens=None)
    held_tokens = TODAY.max_running * sampling_of(true_system(roomy)).resident_tokens
    return replace(roomy, kv_capacity_tokens=round(full_ratio * held_tokens))


def truth_of(world: World, running: int, folder: Path | None) -> Truth:
    """Simulate token by token; recomputed tokens cost what prompt tokens cost."""
    layout = replace(TODAY, max_running=running)
    outcome = simulate_world(world, layout, STEPS, 0, folder)
    samples = outcome.generated_tokens / true_system(world).workload.lengths.mean_tokens
    engine_s = outcome.end_s * layout.sampler_gpus
    again_s = outcome.recomputed_tokens / world.passes.prefill_tokens_per_s
    return Truth(Preemption(outcome.preemptions / samples, again_s / engine_s), outcome.tokens_per_s(STEPS // 3 + 1))


def row(name: str, lost: Preemption | None, tokens_per_s: float | None) -> str:
    """One line of the table."""
    if lost is None or lost.recompute_ratio is None:
        return f"  {name:<34} {'-':>10}"
    rate = "" if tokens_per_s is None else f"{tokens_per_s:10.0f}"
    return f"  {name:<34} {lost.preemptions_per_sample:10.3f} {lost.recompute_ratio:10.2%} {rate}".rstrip()


def predicted(name: str, forecast: Forecast) -> str:
    """A forecast's line."""
    return row(name, forecast.preemption, forecast.tokens_per_s)


def judged(name: str, world: World) -> Iterator[str]:
    """The lines of one system."""
    with tempfile.TemporaryDirectory() as scratch:
        truth = truth_of(world, TODAY.max_running, Path(scratch) / "run")
        model = analyze(Path(scratch) / "run").model
    if not isinstance(model, ModelResult):
        yield f"{name}: {model.reason}"
        return
    twice = 2 * TODAY.max_running
    yield name
    yield row(f"true, {TODAY.max_running} running", truth.lost, truth.tokens_per_s)
    yield row("counted from the trace", model.preemption, None)
    yield predicted("predicted", model.forecasts.today)
    other = truth_of(world, twice, None)
    yield row(f"true, {twice} running", other.lost, other.tokens_per_s)
    yield predicted("predicted", what_if(model, Change(max_running=twice)).predicted)


def main() -> None:
    """Write the table."""
    lines = [
        f"{platform.machine()}, Python {platform.python_version()}; {STEPS} steps, four trainer GPUs and four engines",
        f"  {'':<34} {'a sample':>10} {'of time':>10} {'tokens/s':>10}",
    ]
    for name, mixes_prefill, full_ratio in SYSTEMS:
        lines += judged(name, world_of(mixes_prefill, full_ratio))
    FIGURES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
