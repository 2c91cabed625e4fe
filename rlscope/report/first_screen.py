"""The first screen: what a reader with thirty seconds takes away. Everything else on the page says why."""

from typing import NamedTuple

from rlscope.analysis import Analysis
from rlscope.model.outlook import Outlook
from rlscope.report import advice, numbers, outlook, wording
from rlscope.report.figure import Fact


class AdvicePanel(NamedTuple):
    """The layout advice."""

    headline: str
    why: str
    rows: list[tuple[str, list[str]]]
    """A line per property, with a value for today's layout and one for the other."""
    columns: list[str]


class FirstScreen(NamedTuple):
    """What the first screen shows."""

    label: str
    alarm: str | None
    headline: str
    why: str
    next_step: str
    facts: list[Fact]
    advice: AdvicePanel | None
    no_advice: str | None
    """Set where the model says nothing: why."""


def first_screen(analysis: Analysis) -> FirstScreen:
    """The first screen's words."""
    said = analysis.outlook
    has_advice = isinstance(said, Outlook)
    return FirstScreen(
        label=wording.verdict_label(analysis.verdict.bottleneck),
        alarm=wording.alarm(analysis),
        headline=wording.headline(analysis),
        why=wording.why(analysis),
        next_step=wording.next_step(analysis),
        facts=_facts(analysis),
        advice=_advice(said) if has_advice else None,
        no_advice=None if has_advice else outlook.silence_sentence(said),
    )


def _facts(analysis: Analysis) -> list[Fact]:
    run, rates, tokens = analysis.run, analysis.throughput, analysis.staleness.tokens
    whole = rates.achieved_tokens_per_s
    cap = "no cap stated" if run.max_staleness is None else f"cap {run.max_staleness}"
    sides = [(run.trainer_gpus, "train"), (run.sampler_gpus, "sample"), (run.colocated_gpus, "do both")]
    layout = ", ".join(f"{numbers.count(gpus)} {does}" for gpus, does in sides if gpus)
    return [
        Fact(
            "Trained, steady",
            numbers.tokens_per_second(rates.steady_tokens_per_s),
            "" if whole is None else f"{numbers.tokens_per_second(whole)} over the whole run",
        ),
        Fact(
            "Token staleness",
            numbers.NO_DATA if tokens is None else f"{numbers.significant(tokens.mean)} mean",
            cap if tokens is None else f"p95 {tokens.p95}, max {tokens.max}, {cap}",
        ),
        Fact("GPUs", numbers.count(run.n_gpus), layout),
        Fact("GPU time", numbers.gpu_time(analysis.ledger.total_gpu_s), f"in {numbers.duration(run.duration_s)}"),
        Fact("Training steps", numbers.count(run.steps), numbers.tokens(run.tokens_trained)),
    ]


def _advice(said: Outlook) -> AdvicePanel:
    chosen = advice.chosen_rows(said)
    changes = said.recommendation.changes
    rows = [
        ("trainer GPUs", [row.trainer_gpus for row in chosen]),
        ("sampler GPUs", [row.sampler_gpus for row in chosen]),
        ("running per engine", [row.running for row in chosen]),
        ("trained tokens/s", [row.rate.removesuffix(" tokens/s") for row in chosen]),
        *_gain_rows(said),
        ("staleness p95", [row.staleness for row in chosen]),
    ]
    return AdvicePanel(
        advice.change_words(said) if changes else advice.headline(said),
        advice.why_beside_rows(said),
        rows,
        [row.mark for row in chosen],
    )


def _gain_rows(said: Outlook) -> list[tuple[str, list[str]]]:
    """What the other layout brings and how sure that is; no rows where there is none."""
    recommendation = said.recommendation
    if recommendation.best is said.forecasts.today:
        return []
    median, low, high = map(numbers.signed_percent, recommendation.gain_ratio)
    rows = [("gain", median)] + ([("90% between", f"{low} and {high}")] if low != high else [])
    rows.append(("faster in", f"{numbers.percent(recommendation.better_probability)} of cases"))
    return [(name, ["–", value]) for name, value in rows]
