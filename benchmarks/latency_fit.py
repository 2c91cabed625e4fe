"""How well a decode curve fits measured decode steps, and how far it carries: errors in range and beyond.

Each series (a device and a model) is fitted whole, with and without the term for resident KV, and then on batches up
to 64 only and judged on those above, which is what an asynchronous run asks for that has seen small batches. Each
device and each model is then left out: what to expect of it is taken from the others alone.

    python benchmarks/latency_fit.py [--data benchmarks/data/decode_latency.csv]

Writes its figures to `benchmarks/latency_fit.txt` when it reads the table that is kept.
"""

import argparse
import csv
import platform
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from rlscope.model.arrays import Reals
from rlscope.model.decode.fit import CurveFit, fit_decode_curve
from rlscope.model.decode.measurements import DecodePoints
from rlscope.model.decode.prior import HardwarePrior, LogNormal, ShapePrior, hardware_prior
from rlscope.model.hardware.devices import ModelShape, find_device

Rows = npt.NDArray[np.bool_]

KEPT_TABLE = Path(__file__).parent / "data" / "decode_latency.csv"
FIGURES = Path(__file__).with_suffix(".txt")
SEEN_BATCH = 64
SEED = 1
WORST = 5
FEWEST_OTHERS = 3
TILTS = (0.0, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3)
"""Departures from the form that the others choose from."""
WIDE = 0.6
"""Log deviation of a prior that hardly says anything."""
WIDE_SHAPES = ShapePrior(sharpness=LogNormal(3.0, 1.0), growth=LogNormal(0.02, 1.5))


NOTES = """\
data:    benchmarks/data/decode_latency.csv, seed 1. Kernels only: no overhead of an engine is in them, which is why
         hardware alone, which expects some, is too high. No mixture of experts is among them: the form for those is
         tested on made-up passes only. The shares of the peaks that hardware is expected to reach, the shapes and how
         far a draw may depart from its form were set with this table in view: only what is left out is a test.
inside:  share of steps within the 90 % interval of the curve, which single kernels leave more often than their mean."""


def dense(parameters: int, layers: int, kv_heads: int, head_dim: int = 128) -> ModelShape:
    """A bf16 model with a bf16 cache."""
    return ModelShape(
        parameters=parameters, layers=layers, kv_heads=kv_heads, head_dim=head_dim, bytes_per_weight=2, bytes_per_kv=2
    )


MODELS: dict[str, ModelShape] = {
    "Qwen2.5-0.5B": dense(494_032_768, 24, 2, 64),
    "Qwen2.5-1.5B": dense(1_543_714_304, 28, 2),
    "Qwen2.5-7B": dense(7_615_616_512, 28, 4),
    "Llama-3.1-8B": dense(8_030_261_248, 32, 8),
    "Qwen3-8B": dense(8_190_735_360, 36, 8),
    "Qwen3-32B": dense(32_762_123_264, 64, 8),
}
"""By the name in the table, from the models' cards."""
DRIVER_NAMES = {"a100_sxm": "NVIDIA A100-SXM4-80GB", "h100_sxm": "NVIDIA H100 80GB HBM3", "h200_sxm": "NVIDIA H200"}
LARGE_PARAMETERS = 7_000_000_000


@dataclass(frozen=True, slots=True)
class Series:
    """The steps of one model on one device."""

    system: str
    model: str
    running: Reals
    context_tokens: Reals
    pass_s: Reals
    attention_s: Reals
    """NaN where the table does not tell the parts."""

    @property
    def kv_tokens(self) -> Reals:
        return self.running * self.context_tokens

    @property
    def prior(self) -> HardwarePrior | None:
        device = find_device(DRIVER_NAMES.get(self.system, self.system))
        return hardware_prior(MODELS[self.model], device, 1)

    @property
    def is_large_on_hopper(self) -> bool:
        hopper = DRIVER_NAMES.get(self.system, self.system).startswith(("NVIDIA H100", "NVIDIA H200"))
        return hopper and (MODELS[self.model].parameters or 0) >= LARGE_PARAMETERS

    def points(self, chosen: Rows, *, with_kv: bool = True) -> DecodePoints:
        """Each row of the table is a mean over many measurements."""
        kv_tokens = self.kv_tokens[chosen] if with_kv else None
        return DecodePoints.of(self.running[chosen], self.pass_s[chosen], rows=100, kv_tokens=kv_tokens)


def read_series(path: Path) -> list[Series]:
    rows: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            cells = (row["batch"], row["ctx"], row["total_ms"], row.get("attn_ms") or "nan")
            rows[row["system"], row["model"]].append(tuple(map(float, cells)))
    return [
        Series(*key, running, context, total_ms / 1e3, attention_ms / 1e3)
        for key, table in rows.items()
        for running, context, total_ms, attention_ms in [np.array(table).T]
    ]


class Error(NamedTuple):
    """One predicted step."""

    series: Series
    row: int
    ratio: float
    """Predicted over measured, less 1."""
    why: str


class Judged(NamedTuple):
    """Errors of one fit over some rows of its series."""

    errors: list[Error]
    inside: list[bool]
    """Whether the 90 % interval of the curve holds the measured time."""


def predicted_s(fit: CurveFit, series: Series) -> Reals:
    return fit.curve.pass_s(series.running) + fit.curve.kv_s_per_token * series.kv_tokens


def judge(fit: CurveFit, series: Series, chosen: Rows) -> Judged:
    ratio = predicted_s(fit, series) / series.pass_s - 1
    rows = np.flatnonzero(chosen)
    intervals = [fit.pass_interval(series.running[row], series.kv_tokens[row]) for row in rows]
    return Judged(
        [Error(series, int(row), float(ratio[row]), why(fit, series, int(row))) for row in rows],
        [found.low <= series.pass_s[row] <= found.high for row, found in zip(rows, intervals, strict=True)],
    )


def why(fit: CurveFit, series: Series, row: int) -> str:
    """Which part of the step the curve misses, empty where the table has no parts. The part of attention that every
    step has counts as work."""
    if np.isnan(series.attention_s[row]):
        return ""
    kv_s = fit.curve.kv_s_per_token * series.kv_tokens
    constant_s = float(np.median(series.attention_s - kv_s))
    attention_s = series.attention_s[row] - constant_s
    work_s = series.pass_s[row] - attention_s
    fitted_work_s = float(fit.curve.pass_s(series.running[row]))
    if abs(kv_s[row] - attention_s) > abs(fitted_work_s - work_s):
        return f"attention beyond its constant part: {1e3 * attention_s:.2f} ms, the KV term {1e3 * kv_s[row]:.2f} ms"
    return f"multiplications: {1e3 * work_s:.2f} ms, the curve {1e3 * fitted_work_s:.2f} ms"


def fitted(points: DecodePoints, prior: HardwarePrior | None) -> CurveFit:
    fit = fit_decode_curve(points, prior, np.random.default_rng(SEED))
    assert fit is not None
    return fit


def mape(errors: Iterable[Error]) -> float:
    return float(np.mean([abs(error.ratio) for error in errors]))


def line(name: str, judged: Judged) -> str:
    bias = float(np.mean([error.ratio for error in judged.errors]))
    worst = max(abs(error.ratio) for error in judged.errors)
    inside = float(np.mean(judged.inside))
    return f"{name:<26}{mape(judged.errors):>8.1%}{bias:>+9.1%}{worst:>9.1%}{inside:>9.0%}{len(judged.errors):>7}"


HEADER = f"{'series':<26}{'MAPE':>8}{'bias':>9}{'worst':>9}{'inside':>9}{'steps':>7}"


def table(title: str, results: Mapping[str, Judged], out: TextIO) -> None:
    print(f"\n{title}\n{HEADER}", file=out)
    for name, judged in results.items():
        print(line(name, judged), file=out)
    print(line("all", merged(results.values())), file=out)


def merged(parts: Iterable[Judged]) -> Judged:
    kept = list(parts)
    return Judged([error for part in kept for error in part.errors], [held for part in kept for held in part.inside])


def worst_steps(title: str, judged: Judged, out: TextIO) -> None:
    print(f"\n{title}", file=out)
    for error in sorted(judged.errors, key=lambda error: -abs(error.ratio))[:WORST]:
        running, context = error.series.running[error.row], error.series.context_tokens[error.row]
        at = f"{name_of(error.series)}, {running:.0f} x {context:.0f}"
        print(f"  {error.ratio:>+7.1%}  {at:<42}{error.why}".rstrip(), file=out)


def name_of(series: Series) -> str:
    short = {driver: key for key, driver in DRIVER_NAMES.items()}
    return f"{short.get(series.system, series.system)} {series.model}"


def everywhere(series: Series) -> Rows:
    return np.ones(len(series.running), dtype=bool)


def report(all_series: list[Series], out: TextIO) -> None:
    """Every table, and the figures that the aims are about."""
    whole = {name_of(s): judge(fitted(s.points(everywhere(s)), s.prior), s, everywhere(s)) for s in all_series}
    table("Fitted to every step, with the KV term", whole, out)
    worst_steps("The five worst of them, batch x context, and which part is missed", merged(whole.values()), out)
    blind = {
        name_of(s): judge(fitted(s.points(everywhere(s), with_kv=False), s.prior), s, everywhere(s)) for s in all_series
    }
    table("Fitted to every step by its batch size alone: what leaving out resident KV costs", blind, out)
    wide = [s for s in all_series if s.running.max() > SEEN_BATCH]
    if wide:
        aims(all_series, whole, extrapolations(wide, out), out)


def extrapolations(wide: list[Series], out: TextIO) -> dict[str, Judged]:
    """Judged on batches that the fit did not see; the result is that of what is done by default."""
    title = f"Fitted to batches up to {SEEN_BATCH}, {{}}, judged on those above"
    beyond = {name_of(s): beyond_seen(s, s.prior) for s in wide}
    table(title.format("with what the hardware lets one expect"), beyond, out)
    worst_steps("The five worst of them", merged(beyond.values()), out)
    table(title.format("without hardware"), {name_of(s): beyond_seen(s, None) for s in wide}, out)
    known = [s for s in wide if s.prior is not None]
    alone = {name_of(s): judge(fitted(DecodePoints.of([], []), s.prior), s, s.running > SEEN_BATCH) for s in known}
    if alone:
        table(f"Hardware alone, judged on batches above {SEEN_BATCH}", alone, out)
    if all(series.prior is not None for series in wide) and len(wide) > FEWEST_OTHERS:
        left_out(wide, out)
    return beyond


def beyond_seen(series: Series, prior: HardwarePrior | None) -> Judged:
    seen = series.running <= SEEN_BATCH
    return judge(fitted(series.points(seen), prior), series, ~seen)


def lognormal(values: Iterable[float]) -> LogNormal:
    """What to expect of one more value."""
    logs = np.log(list(values))
    return LogNormal(float(np.exp(logs.mean())), float(logs.std(ddof=1) * np.sqrt(1.0 + 1.0 / logs.size)))


@dataclass(frozen=True, slots=True)
class Whole:
    """Parameters of one series, fitted to every step with next to nothing expected."""

    series: Series
    parameters: Mapping[str, float]

    def ratio(self, part: str) -> float:
        """What a part of the curve costs over what the hardware lets one expect."""
        found, prior = self.parameters, self.series.prior
        assert prior is not None and prior.kv_s_per_token is not None
        if part == "kv":
            return found["kv_s_per_token"] / prior.kv_s_per_token.median
        if part == "flat":
            return (found["flat_s"] + found["overhead_s"]) / prior.flat_s.median
        return found["per_request_s"] / prior.per_request_s.median


def fitted_wide(series: Series) -> Whole:
    prior = series.prior
    assert prior is not None and prior.kv_s_per_token is not None
    wide = replace(
        prior,
        flat_s=replace(prior.flat_s, log_sd=WIDE),
        per_request_s=replace(prior.per_request_s, log_sd=WIDE),
        kv_s_per_token=replace(prior.kv_s_per_token, log_sd=WIDE),
    )
    points = series.points(everywhere(series))
    fit = fit_decode_curve(points, wide, np.random.default_rng(SEED), shapes=WIDE_SHAPES)
    assert fit is not None
    return Whole(series, fit.parameters)


def shapes_of(others: Iterable[Whole]) -> ShapePrior:
    """What the others let one expect of a curve's shape."""
    known = list(others)

    return ShapePrior(
        sharpness=lognormal(one.parameters["sharpness"] for one in known),
        growth=lognormal(one.parameters["growth"] for one in known),
    )


def expected_by(others: Sequence[Whole], series: Series) -> HardwarePrior:
    """The hardware's, with the shares of the peaks that the others reach."""
    prior = series.prior
    assert prior is not None and prior.kv_s_per_token is not None
    flat, slope, kv = (lognormal(one.ratio(part) for one in others) for part in ("flat", "slope", "kv"))
    return replace(
        prior,
        flat_s=LogNormal(prior.flat_s.median * flat.median, flat.log_sd),
        per_request_s=LogNormal(prior.per_request_s.median * slope.median, slope.log_sd),
        kv_s_per_token=LogNormal(prior.kv_s_per_token.median * kv.median, kv.log_sd),
    )


def with_tilts(fit: CurveFit, elasticity_sd: float) -> CurveFit:
    """The same draws, departing so far from their form beyond the batches that were fitted."""
    tilts = elasticity_sd * np.random.default_rng(SEED).standard_normal(len(fit.draws))
    draws = [
        replace(curve, measured_running=float(SEEN_BATCH), tilt=float(tilt))  # type: ignore[type-var]
        for curve, tilt in zip(fit.draws, tilts, strict=True)
    ]
    return replace(fit, draws=tuple(draws))


def interval_score(fit: CurveFit, series: Series) -> float:
    """Mean width of the 90 % interval in log time, and misses twenty times (Gneiting and Raftery 2007)."""
    scores: list[float] = []
    for row in np.flatnonzero(series.running > SEEN_BATCH):
        found, true_s = fit.pass_interval(series.running[row], series.kv_tokens[row]), series.pass_s[row]
        outside = max(np.log(found.low / true_s), np.log(true_s / found.high), 0.0)
        scores.append(float(np.log(found.high / found.low) + 20.0 * outside))
    return float(np.mean(scores))


def left_out(wide: list[Series], out: TextIO) -> None:
    """Each device, then each model, judged by what the others alone let one expect."""
    wholes = [fitted_wide(series) for series in wide]
    for name in ("system", "model"):
        for with_hardware in (True, False):
            results: dict[str, Judged] = {}
            tilts: dict[str, float] = {}
            free = {
                name_of(s): fitted(s.points(s.running <= SEEN_BATCH), s.prior if with_hardware else None) for s in wide
            }
            for group in dict.fromkeys(getattr(series, name) for series in wide):
                others = [one for one in wholes if getattr(one.series, name) != group]
                chosen = min(
                    TILTS,
                    key=lambda tilt: sum(
                        interval_score(with_tilts(free[name_of(one.series)], tilt), one.series) for one in others
                    ),
                )
                tilts[group] = chosen
                for series in (series for series in wide if getattr(series, name) == group):
                    fit = fit_decode_curve(
                        series.points(series.running <= SEEN_BATCH),
                        expected_by(others, series) if with_hardware else None,
                        np.random.default_rng(SEED),
                        shapes=shapes_of(others),
                    )
                    assert fit is not None
                    results[name_of(series)] = judge(with_tilts(fit, chosen), series, series.running > SEEN_BATCH)
            told = "hardware known" if with_hardware else "without hardware"
            title = f"Each {'device' if name == 'system' else 'model'} left out, {told}: batches up to {SEEN_BATCH}"
            table(f"{title} fitted, judged on those above", results, out)
            print(
                "departure chosen by the others: " + ", ".join(f"{key} {tilt}" for key, tilt in tilts.items()), file=out
            )


def aims(all_series: list[Series], whole: Mapping[str, Judged], beyond: Mapping[str, Judged], out: TextIO) -> None:
    """Means over series, so that each model counts once."""
    print("\nMean of the series' MAPE, against its aim", file=out)
    print(f"  in range, all series                      {mean_mape(whole.values()):>6.1%}   below 4 %", file=out)
    large = [name_of(series) for series in all_series if series.is_large_on_hopper and name_of(series) in beyond]
    if large:
        ratio = mean_mape(beyond[name] for name in large)
        print(f"  beyond, Hopper, 7B parameters and above   {ratio:>6.1%}   below 10 %", file=out)


def mean_mape(results: Iterable[Judged]) -> float:
    return float(np.mean([mape(judged.errors) for judged in results]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=KEPT_TABLE)
    path: Path = parser.parse_args().data
    if path != KEPT_TABLE:
        report(read_series(path), sys.stdout)
        return
    with FIGURES.open("w", encoding="utf-8") as out:
        print("command: python benchmarks/latency_fit.py", file=out)
        print(f"machine: {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}", file=out)
        print(NOTES, file=out)
        report(read_series(path), out)
    print(FIGURES.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
