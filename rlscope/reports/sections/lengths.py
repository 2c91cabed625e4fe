"""Response lengths, and the tokens that were not trained on."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.reports.blocks import Block, Paragraph
from rlscope.reports.charts import lengths
from rlscope.reports.figure import Figure, drawn_frame

_ENDINGS: Final = ("finished_samples", "capped_samples", "censored_samples")
_CAP: Final = "max_output_tokens"
# Means that differ by less count as equal.
BIAS_RATIO: Final = 0.05
# A cap farther out would squeeze the lengths into a corner of the chart.
_CAP_IN_SIGHT: Final = 1.25


def cap_in_sight_tokens(lengths_of: pl.DataFrame, run: RunFacts) -> int | None:
    """Return the cap of the run's config, in tokens; None without one, or if it is far above all lengths."""
    cap = run.integer_setting(_CAP)
    longest = lengths_of["length_to_tokens"].max() or 0
    return cap if cap is not None and cap <= _CAP_IN_SIGHT * longest else None  # pyright: ignore[reportOperatorIssue]


def outcomes_sentence(answers: Mapping[str, pl.DataFrame]) -> str:
    """Say which share of the tokens was not trained on, and whether dropping biases the lengths; empty if unknown."""
    outcomes = answers["delivery_outcomes"]
    total = int(outcomes["tokens"].sum())
    if not total:
        return ""
    is_trained = pl.col("outcome") == "trained"
    rest = outcomes.filter(~is_trained)
    if rest.is_empty():
        return f"All {fmt.tokens(total)} that left the queue were trained on."
    lost = f"{fmt.percent(int(rest['tokens'].sum()) / total)} of the tokens that left the queue were not trained on."
    return f"{lost} {_bias(_mean_tokens(outcomes.filter(is_trained)), _mean_tokens(rest))}".rstrip()


def _mean_tokens(outcomes: pl.DataFrame) -> float | None:
    """Return the mean length of the recorded samples of these outcomes; None without one."""
    samples = float((outcomes["tokens"] / outcomes["mean_output_tokens"]).sum())
    return float(outcomes["tokens"].sum()) / samples if samples else None


def _bias(trained: float | None, rest: float | None) -> str:
    if not trained or rest is None:
        return ""
    lengths_of = (f"{fmt.significant(each)} tokens" for each in (trained, rest))
    means = "Mean length: {} trained on, {} not trained on".format(*lengths_of)
    if abs(rest - trained) < BIAS_RATIO * trained:
        return f"{means}. Dropping does not bias lengths."
    differ, biased = ("longer", "shorter") if rest > trained else ("shorter", "longer")
    apart = fmt.percent(abs(rest / trained - 1))
    return f"{means} ({apart} {differ}). Dropping biases training towards {biased} responses."


def lengths_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    lead, frame = outcomes_sentence(analysis.answers), analysis.answers["response_lengths"]
    chart = drawn_frame(_figure(frame, analysis.run), frame, analysis.run)
    return [*([Paragraph(lead, "lead")] if lead else []), chart]


def _figure(frame: pl.DataFrame, run: RunFacts) -> Figure:
    """Return the figure of the lengths; its caption says how many samples hit the cap."""
    counts = {name: int(frame[name].sum()) for name in _ENDINGS}
    cap, samples = run.integer_setting(_CAP), sum(counts.values())
    hit = f": {fmt.percent(counts['capped_samples'] / samples)} of the samples hit it" if samples else ""
    said = "The run has no cap." if cap is None else f"The cap is {fmt.count(cap)} tokens{hit}."
    censored = _CENSORED if counts["censored_samples"] else ""
    return Figure(
        "Response lengths",
        f"Capped samples hit the length limit.{censored} Healthy: few capped samples. {said}",
        "response_lengths",
        "length_from_tokens",
        partial(lengths.response_lengths, cap_tokens=cap_in_sight_tokens(frame, run)),
        "no sample was recorded",
        True,
    )


_CENSORED: Final = " Censored samples were aborted or still running, so their full length is unknown."
