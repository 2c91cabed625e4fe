"""What `rlscope plan` says before a run against the step times that others published.

Each run is planned from its model, GPUs, mean length and batch alone, with the plan's defaults, and the layout that was
run is asked for. Two kinds: synchronous (all GPUs generate, then all train) and asynchronous. The cost of routing to
experts in training is fitted here to published pre-training rates, which are none of the runs: whole, with each model
left out, and with no fit at all.

    python benchmarks/published_steps.py

Writes its figures to `benchmarks/published_steps.txt`.
"""

import csv
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from rlscope.model.analytic.synchronous import colocated_step
from rlscope.model.arrays import Reals
from rlscope.model.forecast.plan import by_split, limits_of
from rlscope.model.forecast.plan_prior import PlanInputs, assumed_calibration, drawn_systems, planned_system
from rlscope.model.forecast.predict import predict as predict_layout
from rlscope.model.system import Layout
from rlscope.model.training.step_time import expert_routing_s_per_token
from rlscope.planning.build import plan_of
from rlscope.planning.schema import read_plan

DATA = Path(__file__).parent / "data"
FIGURES = Path(__file__).with_suffix(".txt")
PROMPT_TOKENS = 120
"""Assumed; NeMo RL's mean lengths include the prompt."""
CV_RATIO = 0.6
NEAR_CAP_CV_RATIO = 0.35
"""Of response lengths, assumed: nobody publishes it. The second where the mean is above half of the cap, under which
lengths cannot vary more."""
FORWARD_PASSES = 2
"""Old and reference log-probabilities, which GRPO with a penalty computes on the trainers."""
ROUTED_BYTES = 8.0
TARGET_SYSTEM = "DGX-H100"

NOTES = f"""\
predicted: median and 90 % interval of the draws. Assumed beside the plan's defaults: prompts of {PROMPT_TOKENS} tokens,
           lengths with a coefficient of variation of {CV_RATIO}, or {NEAR_CAP_CV_RATIO} where the mean is above half
           of the cap, {FORWARD_PASSES} forward passes for log-probabilities.
runs:      benchmarks/data/published_steps.csv, with the recomputation that their recipes state. Nothing was fitted to
           them. Several are one run on two numbers of GPUs: what there is to learn from is three models with experts
           and three without. Only Qwen3-30B-A3B is trained as the dense ones are, with engines of one or two GPUs and
           50 thousand tokens a GPU and step or more. The other two have engines of 8 to 32 GPUs, most over several
           nodes, and steps of 700 to 46 thousand tokens a GPU: latency between nodes and pipelines that fill, neither
           of which a plan counts.
routing:   seconds of a layer and token that published pre-training on nodes of eight H100 leaves after the arithmetic
           at the rate of dense models (half of it in bf16), fitted as a + 8 bytes * k * h / w.
"""


@dataclass(frozen=True, slots=True)
class Model:
    """From its card or config."""

    parameters: int
    layers: int
    heads: int
    head_dim: int
    kv_heads: int
    hidden: int
    active: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    kv_latent: int | None = None
    bytes_per_weight: float = 2.0


MODELS = {
    "Qwen2.5-1.5B": Model(1_543_714_304, 28, 12, 128, 2, 1536),
    "Llama-3.1-8B": Model(8_030_261_248, 32, 32, 128, 8, 4096),
    "Qwen3-32B": Model(32_762_123_264, 64, 64, 128, 8, 5120),
    "Qwen3-30B-A3B": Model(30_532_122_624, 48, 32, 128, 4, 2048, 3_345_000_000, 128, 8),
    "Qwen3-235B-A22B": Model(235_093_634_560, 94, 64, 128, 4, 4096, 22_190_000_000, 128, 8),
    "GPT-OSS-120B": Model(116_829_156_672, 36, 64, 64, 8, 2880, 5_130_000_000, 128, 4),
    "DeepSeek-V3": Model(671_026_419_200, 61, 128, 128, 128, 7168, 37_550_000_000, 256, 8, 576),
}


@dataclass(frozen=True, slots=True)
class Run:
    """A published run."""

    name: str
    model: str
    is_synchronous: bool
    entries: dict[str, str]

    @property
    def step_s(self) -> float:
        return float(self.entries["step_s"])

    @property
    def has_experts(self) -> bool:
        return MODELS[self.model].experts is not None

    def plan_text(self) -> str:
        """The plan that somebody would have written before it."""
        of, model = self.entries, MODELS[self.model]
        train, sample = int(of["train_gpus"]), int(of["sampler_gpus"])
        total = train if self.is_synchronous else train + sample
        includes_prompt = of["source"].startswith("NeMo")
        prompt = PROMPT_TOKENS if includes_prompt else 0
        mean, cap = float(of["mean_tokens"]) - prompt, int(of["max_output_tokens"]) - prompt
        cv_ratio = CV_RATIO if mean <= cap / 2 else NEAR_CAP_CV_RATIO
        lines = [
            "[gpus]",
            f'total = {total}\ndevice = "{of["device"]}"\ngpus_per_engine = {of["gpus_per_engine"]}',
            "[model]",
            f"parameters = {model.parameters}\nlayers = {model.layers}\nattention_heads = {model.heads}",
            f"head_dim = {model.head_dim}\nkv_heads = {model.kv_heads}\nhidden_size = {model.hidden}",
        ]
        if model.experts is not None:
            lines.append(f"active_parameters = {model.active}\nexperts = {model.experts}")
            lines.append(f"experts_per_token = {model.experts_per_token}")
        if model.kv_latent is not None:
            lines.append(f"kv_latent_dim = {model.kv_latent}")
        lines += [
            "[lengths]",
            f"prompt_tokens = {PROMPT_TOKENS}\nmean_tokens = {mean}\ncv_ratio = {cv_ratio}",
            f"max_output_tokens = {cap}",
            "[batch]",
            f"samples_per_step = {of['samples']}\ngroup_size = {of['group_size']}",
            "[training]",
            f"recompute_activations = {'true' if of['recomputes'] == 'yes' else 'false'}",
            f"extra_forward_passes = {FORWARD_PASSES}\nstate_bytes_per_parameter = 0",
        ]
        if not self.is_synchronous:
            lines += ["[limits]", f'max_staleness = {of["staleness"]}\nstaleness_policy = "admission"']
        return "\n".join(lines) + "\n"

    def plan(self, folder: Path) -> PlanInputs:
        """The plan as the model has it."""
        path = folder / "plan.toml"
        path.write_text(self.plan_text(), encoding="utf-8")
        return plan_of(read_plan(path))


@dataclass(frozen=True, slots=True)
class Predicted:
    """Seconds of a step."""

    median_s: float
    low_s: float
    high_s: float

    def error(self, step_s: float) -> float:
        """Log of predicted over published."""
        return float(np.log(self.median_s / step_s))

    def holds(self, step_s: float) -> bool:
        return self.low_s <= step_s <= self.high_s


def runs() -> list[Run]:
    with (DATA / "published_steps.csv").open(encoding="utf-8") as file:
        return [Run(row["case"], row["model"], row["mode"] == "synchronous", row) for row in csv.DictReader(file)]


def predict(run: Run, plan: PlanInputs) -> Predicted:
    return _synchronous(plan) if run.is_synchronous else _asynchronous(run, plan)


def _synchronous(plan: PlanInputs) -> Predicted:
    steps = [colocated_step(system, plan.gpus) for system in (planned_system(plan, {}), *drawn_systems(plan))]
    seconds = np.array([step.step_s for step in steps if step is not None])
    return Predicted(*(float(np.quantile(seconds, q)) for q in (0.5, 0.05, 0.95)))


def _asynchronous(run: Run, plan: PlanInputs) -> Predicted:
    trainer_gpus, sampler_gpus = int(run.entries["train_gpus"]), int(run.entries["sampler_gpus"])
    layouts = [Layout(trainer_gpus, sampler_gpus, limit) for limit in limits_of(plan)]
    calibration = assumed_calibration(plan, layouts[0])
    chosen, _ = by_split(calibration, plan, layouts)[0]
    found = predict_layout(calibration, chosen.layout)
    assert found.drawn_tokens_per_s is not None, found
    tokens = plan.workload.samples_per_step * plan.workload.lengths.mean_tokens
    seconds = tokens / found.drawn_tokens_per_s
    return Predicted(*(float(np.quantile(seconds, q)) for q in (0.5, 0.05, 0.95)))


@dataclass(frozen=True, slots=True)
class Left:
    """What a published pre-training rate leaves for routing, of one model on one kind of node."""

    system: str
    model: str
    seconds_per_layer: float
    values_routed: float

    def expected_s(self, fixed_s: float, bytes_per_s: float) -> float:
        return fixed_s + ROUTED_BYTES * self.values_routed / bytes_per_s


def left_for_routing() -> list[Left]:
    """Token-dropless rows only: a run that drops tokens does less."""
    with (DATA / "expert_training.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    dense: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if not row["dropless"]:
            dense[row["system"]].append(float(row["model_tflops_per_gpu"]))
    found = []
    for row in rows:
        if row["dropless"] != "yes":
            continue
        model, tokens_per_s = MODELS[row["model"]], float(row["tokens_per_gpu_s"])
        reached = float(np.mean(dense[row["system"]])) * (1.0 if row["precision"] == "FP8" else 0.5)
        spent_s = 1.0 / tokens_per_s - float(row["model_tflops_per_gpu"]) / tokens_per_s / reached
        routed = float((model.experts_per_token or 0) * model.hidden)
        found.append(Left(row["system"], row["model"], spent_s / model.layers, routed))
    return found


def fit(rows: Sequence[Left]) -> tuple[float, float]:
    """a in seconds and w in bytes/s, by least squares of relative errors over the models, each counting once."""
    models = sorted({row.model for row in rows})
    of = [[row for row in rows if row.model == model] for model in models]
    seconds = np.array([np.exp(np.mean([np.log(each.seconds_per_layer) for each in group])) for group in of])
    routed = np.array([ROUTED_BYTES * group[0].values_routed for group in of])
    terms = np.stack([np.ones_like(routed), routed], axis=1) / seconds[:, None]
    (fixed_s, s_per_byte), *_ = np.linalg.lstsq(terms, np.ones_like(seconds), rcond=None)
    return float(fixed_s), float(1.0 / s_per_byte)


def routing_lines() -> Iterable[str]:
    rows = left_for_routing()
    seen = [row for row in rows if row.system == TARGET_SYSTEM]
    fixed_s, bytes_per_s = fit(seen)
    yield (
        f"fitted to {len({row.model for row in seen})} models on {TARGET_SYSTEM}: a = {1e6 * fixed_s:.2f} us, w = "
        + (f"{bytes_per_s / 1e9:.0f} GB/s")
    )
    errors = []
    for model in sorted({row.model for row in seen}):
        others = fit([row for row in seen if row.model != model])
        held_out = [np.log(row.expected_s(*others) / row.seconds_per_layer) for row in seen if row.model == model]
        errors.append(float(np.mean(held_out)))
        yield f"  without {model:<16} a = {1e6 * others[0]:.2f} us, w = {others[1] / 1e9:4.0f} GB/s: that model " + (
            f"{np.expm1(errors[-1]):+.0%}"
        )
    yield f"  log deviation of a model left out: {np.sqrt(np.mean(np.square(errors))):.2f} (n = {len(errors)} models)"
    for system in sorted({row.system for row in rows}):
        logs = [
            np.log(row.seconds_per_layer / _in_use(row))
            for row in rows
            if row.system == system and row.seconds_per_layer > 0.0
        ]
        yield f"  {system:<10} {len(logs)} rows: median {np.exp(np.median(logs)):.2f} of what the plan takes, log" + (
            f" deviation {np.std(logs):.2f}"
        )


def _in_use(row: Left) -> float:
    model = MODELS[row.model]
    return expert_routing_s_per_token(model.layers, model.experts_per_token or 0, model.hidden) / model.layers


def run_lines(folder: Path) -> Iterable[str]:
    header = f"{'run':<34}{'published':>10}{'predicted':>11}{'90 % interval':>18}{'error':>8}{'inside':>8}"
    yield header + f"{'without routing':>17}"
    scores: dict[str, list[tuple[str, Predicted, float, float | None]]] = defaultdict(list)
    for run in runs():
        plan = run.plan(folder)
        predicted, bare = predict(run, plan), None
        if run.has_experts:
            bare = predict(run, replace(plan, training=replace(plan.training, routing_s_per_token=None)))
        kind = run.model if run.has_experts else f"dense, {run.entries['mode']}"
        scores[kind].append((run.model, predicted, run.step_s, None if bare is None else bare.error(run.step_s)))
        without = "" if bare is None else f"{np.expm1(bare.error(run.step_s)):+17.0%}"
        yield f"{run.name:<34}{run.step_s:>8.0f} s{predicted.median_s:>9.0f} s" + (
            f"{f'{predicted.low_s:.0f} to {predicted.high_s:.0f} s':>18}{np.expm1(predicted.error(run.step_s)):>+8.0%}"
            f"{'yes' if predicted.holds(run.step_s) else 'no':>8}{without}"
        )
    yield ""
    for kind, each in scores.items():
        yield from _summary(kind, each)


def _summary(kind: str, scores: Sequence[tuple[str, Predicted, float, float | None]]) -> Iterable[str]:
    errors = np.array([predicted.error(step_s) for _, predicted, step_s, _ in scores])
    inside = sum(predicted.holds(step_s) for _, predicted, step_s, _ in scores)
    before = np.array([without for *_, without in scores if without is not None])
    bare = f"; without routing {_words(before)}" if before.size else ""
    models = {model for model, *_ in scores}
    of = f" of {len(models)} models" if len(models) > 1 else ""
    yield f"{kind + ':':<22}{len(scores)} runs{of}, {_words(errors)}, {inside} inside{bare}"


def _words(errors: Reals) -> str:
    root_mean_square = np.sqrt(np.mean(errors**2))
    return f"median error {np.expm1(np.median(errors)):+.0%}, root mean square of its log {root_mean_square:.2f}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines = [*run_lines(Path(folder)), "", *routing_lines()]
    text = f"Python {platform.python_version()}\n{NOTES}\n" + "\n".join(lines) + "\n"
    print(text)
    FIGURES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
