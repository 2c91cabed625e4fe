"""What a plan expects of engines, trainers and weight updates, against figures that others published.

Engines: the four constants of launches and links in `rlscope/model/decode/prior.py` are fitted to published times per
output token, whole, with each model and with each device left out. Trainers: the share of the peak that pre-training
of dense models in bf16 reaches. Weight updates: a power law of the size, whole and with each model left out.

    python benchmarks/plan_priors.py

Writes its figures to `benchmarks/plan_priors.txt`.
"""

import csv
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.optimize import least_squares

from rlscope.model.arrays import Reals
from rlscope.model.decode import prior as engine_prior
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.decode.prior import SHARPNESS, LogNormal, expected_prefill_tokens_per_s, hardware_prior
from rlscope.model.hardware.devices import DEVICES, ModelShape
from rlscope.model.training.step_time import LIKELY_MFU, TrainedModel, training_flops_per_token
from rlscope.model.weight_transfer import usual_update_s

DATA = Path(__file__).parent / "data"
FIGURES = Path(__file__).with_suffix(".txt")
FITTED = ("_LAYER_S", "_LAYER_S_PER_DOUBLING", "_EXPERT_LAYER_S", "_LINK_BYTES_PER_S")
START = (2e-5, 3e-6, 3e-5, 1e11)
"""Where the search begins, far from where it ends."""
DRAWS = 400
PREFILL_LOG_SD = 0.25
DENSE = {
    "Llama-3.1-8B": ModelShape(8_030_261_248, None, 32, 8, 128),
    "Llama-3.1-70B": ModelShape(70_553_706_496, None, 80, 8, 128),
    "Qwen3-32B": ModelShape(32_762_123_264, None, 64, 8, 128),
}
EXPERTS = {
    "DeepSeek-V3": ModelShape(671_026_419_200, 37_550_000_000, 61, experts=256, experts_per_token=8, kv_latent_dim=576),
    "Kimi-K2.5": ModelShape(1_026_000_000_000, 32_900_000_000, 61, experts=384, experts_per_token=8, kv_latent_dim=576),
}
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625, "int4": 0.5625}
"""With a scale of one byte for 16 weights of four bits."""
TRAINED = {
    "Llama-2-7B": TrainedModel(6_738_415_616, 32, 4096),
    "Llama-3.1-8B": TrainedModel(8_030_261_248, 32, 4096),
    "Llama-3.1-70B": TrainedModel(70_553_706_496, 80, 8192),
    "Llama-3.1-405B": TrainedModel(405_853_388_800, 126, 16_384),
}

NOTES = """\
engines:  published_engines.csv, 245 times per output token of vLLM and SGLang on 1 to 8 GPUs whose prompts are no
          longer than the responses. A time includes the prompts between the passes, which are computed at half of the
          peak here. inside: in the interval that holds 90 % of a plan's draws.
trainers: published_training.csv, dense models in bf16; recomputed activations are counted where they are stated.
updates:  published_updates.csv, as the documentation of frameworks has them. Each model counts once.
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """A published time per output token."""

    model: str
    device: str
    gpus: int
    shape: ModelShape
    context_tokens: float
    prompt_ratio: float
    running: int
    token_s: float

    def expected_s(self, rng: np.random.Generator | None = None) -> Reals:
        """Seconds that a plan expects: the median, or draws."""
        device = next(each for each in DEVICES if each.name == self.device)
        expected = hardware_prior(self.shape, device, self.gpus)
        prefill_per_s = expected_prefill_tokens_per_s(self.shape, device, self.gpus)
        assert expected is not None and expected.kv_s_per_token is not None and prefill_per_s is not None

        def at(guess: LogNormal) -> Reals:
            return guess.median * np.exp(guess.log_sd * (rng.standard_normal(DRAWS) if rng else np.zeros(1)))

        experts = expected.experts
        total_s = []
        for flat_s, request_s, sharpness, overhead_s, kv_s, experts_s, hit_rate, prefill in zip(
            at(expected.flat_s),
            at(expected.per_request_s),
            at(LogNormal(1.0, 0.0) if experts else SHARPNESS),
            at(expected.overhead_s),
            at(expected.kv_s_per_token),
            at(experts.experts_s if experts else LogNormal(0.0, 0.0)),
            at(experts.hit_rate if experts else LogNormal(0.0, 0.0)),
            at(LogNormal(prefill_per_s, PREFILL_LOG_SD)),
            strict=True,
        ):
            curve = RooflineCurve(
                flat_s, request_s, sharpness, overhead_s, kv_s, experts_s=experts_s, hit_rate=hit_rate
            )
            kv_tokens = self.running * self.context_tokens
            prompts_s = self.running * self.prompt_ratio / prefill
            total_s.append(float(curve.pass_s(self.running)) + kv_s * kv_tokens + prompts_s)
        return np.array(total_s)


def rows_of(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def engines() -> list[Engine]:
    found = []
    for row in rows_of("published_engines.csv"):
        known = (DENSE | EXPERTS)[row["model"]]
        prompt, output = int(row["prompt_tokens"]), int(row["output_tokens"])
        shape = ModelShape(**{name: getattr(known, name) for name in known.__slots__} | stored(row["weights"]))
        context, running = prompt + output / 2, int(row["running"])
        token_s = float(row["ms"]) / 1e3
        found.append(
            Engine(row["model"], row["device"], int(row["gpus"]), shape, context, prompt / output, running, token_s)
        )
    return found


def stored(weights: str) -> dict[str, float]:
    return {"bytes_per_weight": WEIGHT_BYTES[weights], "bytes_per_kv": 2.0}


def use(constants: Sequence[float]) -> None:
    """Let the prior compute with these constants."""
    for name, value in zip(FITTED, constants, strict=True):
        setattr(engine_prior, name, value)


def fit(rows: Sequence[Engine]) -> list[float]:
    """Least squares of relative errors, with less weight on large ones; each model counts once."""
    models = [row.model for row in rows]
    weights = np.array([models.count(model) ** -0.5 for model in models])
    published_s = np.array([row.token_s for row in rows])

    def errors(factors: Reals) -> Reals:
        use(factors * START)
        return weights * np.log(np.array([row.expected_s()[0] for row in rows]) / published_s)

    found = least_squares(errors, np.ones(len(START)), bounds=(0.0, 20.0), loss="soft_l1", f_scale=0.05)
    return [float(factor * start) for factor, start in zip(found.x, START, strict=True)]


def engine_lines() -> Iterable[str]:
    rows, in_use = engines(), [getattr(engine_prior, name) for name in FITTED]
    yield f"in use          {_constants(in_use)}"
    fitted = fit(rows)
    yield f"fitted to all   {_constants(fitted)}"
    use(in_use)
    for group in (lambda row: row.model, lambda row: row.device, lambda row: f"{row.gpus} GPUs"):
        for name in sorted({group(row) for row in rows}):
            yield f"  {name:<24}{_scores([row for row in rows if group(row) == name])}"
    yield f"  {'all':<24}{_scores(rows)}"
    for kind, group in (("model", lambda row: row.model), ("device", lambda row: row.device)):
        yield from _left_out(rows, kind, group)
    use(in_use)


def _left_out(rows: Sequence[Engine], kind: str, group: Callable[[Engine], str]) -> Iterable[str]:
    yield f"with each {kind} left out of the fit"
    logs, inside = [], []
    for name in sorted({group(row) for row in rows}):
        use(fit([row for row in rows if group(row) != name]))
        own = [row for row in rows if group(row) == name]
        yield f"  without {name:<16}{_scores(own)}"
        logs += [_log_error(row) for row in own]
        inside += [_is_inside(row) for row in own]
    yield f"  all                     {_words(np.array(logs), inside)}"


def _constants(values: Sequence[float]) -> str:
    layer, doubling, expert, link = values
    return (
        f"{1e6 * layer:.0f} us a layer, {1e6 * doubling:.0f} us for each doubling of GPUs, {1e6 * expert:.0f} us for "
        f"experts, links {link / 1e9:.0f} GB/s"
    )


def _log_error(row: Engine) -> float:
    return float(np.log(row.expected_s()[0] / row.token_s))


def _is_inside(row: Engine) -> bool:
    low, high = np.quantile(row.expected_s(np.random.default_rng(1)), [0.05, 0.95])
    return bool(low <= row.token_s <= high)


def _scores(rows: Sequence[Engine]) -> str:
    return _words(np.array([_log_error(row) for row in rows]), [_is_inside(row) for row in rows])


def _words(logs: Reals, inside: Sequence[bool]) -> str:
    bias, error = np.expm1(np.median(logs)), np.median(np.abs(np.expm1(logs)))
    return f"{len(logs):4d} rows, bias {bias:+4.0%}, error {error:3.0%}, inside {np.mean(inside):4.0%}"


def trainer_lines() -> Iterable[str]:
    shares: dict[str, list[float]] = {}
    for row in rows_of("published_training.csv"):
        model = TRAINED[row["model"]]
        flop = training_flops_per_token(model, float(row["sequence_tokens"])) * (4 / 3 if row["recomputes"] else 1)
        peak = next(each for each in DEVICES if each.name == row["device"]).bf16_flop_per_s
        shares.setdefault(row["model"], []).append(float(row["tokens_per_gpu_s"]) * flop / peak)
    for model, each in shares.items():
        yield f"  {model:<16}{len(each):3d} rows, share of the peak {min(each):.2f} to {max(each):.2f}"
    every = np.array([share for each in shares.values() for share in each])
    low, high = (LIKELY_MFU.median * np.exp(sign * 1.645 * LIKELY_MFU.log_sd) for sign in (-1, 1))
    yield (
        f"  in use {LIKELY_MFU.median:.2f}, 90 % from {low:.2f} to {high:.2f}: median of the rows "
        f"{np.median(every):.2f}, {np.mean((low <= every) & (every <= high)):.0%} inside"
    )


def update_lines() -> Iterable[str]:
    rows = rows_of("published_updates.csv")
    models = [row["model"] for row in rows]
    sizes, seconds = (np.array([float(row[name]) for row in rows]) for name in ("gigabytes", "seconds"))
    weights = np.array([models.count(model) ** -0.5 for model in models])
    terms = np.stack([np.ones_like(sizes), np.log(sizes / 60.0)], axis=1)

    def fitted(own: Reals) -> Reals:
        found, *_ = np.linalg.lstsq(terms[own] * weights[own, None], np.log(seconds[own]) * weights[own], rcond=None)
        return found

    level, exponent = fitted(np.ones(len(rows), dtype=bool))
    spread = np.sqrt(np.average((np.log(seconds) - terms @ [level, exponent]) ** 2, weights=weights**2))
    yield f"  fitted: {np.exp(level):.1f} s (GB / 60)^{exponent:.2f}, log deviation {spread:.1f}"
    left = np.empty(len(rows))
    for model in set(models):
        own = np.array([each == model for each in models])
        left[own] = np.log(seconds[own]) - terms[own] @ fitted(~own)
    usual = [usual_update_s(1e9 * size) for size in sizes]
    off = [np.log(each / guess.median) / guess.log_sd for each, guess in zip(seconds, usual, strict=True)]
    yield f"  with each model left out: off by a factor of {np.exp(np.median(np.abs(left))):.1f} in the median"
    yield f"  in use: {np.mean(np.abs(off) <= 1.645):.0%} of {len(rows)} times inside the interval of 90 %"


def main() -> None:
    lines = ["Engines", *engine_lines(), "", "Trainers", *trainer_lines(), "", "Weight updates", *update_lines()]
    text = f"Python {platform.python_version()}\n{NOTES}\n" + "\n".join(lines) + "\n"
    print(text)
    FIGURES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
