"""The first screen: what a reader with thirty seconds takes away. Everything else on the page says why."""

from typing import NamedTuple

from rlscope.analysis import Analysis
from rlscope.report import numbers
from rlscope.report.brief import Brief, brief_of
from rlscope.report.fact import Fact


class FirstScreen(NamedTuple):
    """What the first screen shows."""

    brief: Brief
    facts: list[Fact]


def first_screen(analysis: Analysis) -> FirstScreen:
    """The first screen's words."""
    brief = brief_of(analysis)
    return FirstScreen(brief, [brief.achieved, *_facts(analysis)])


def _facts(analysis: Analysis) -> list[Fact]:
    run, tokens = analysis.run, analysis.staleness.tokens
    cap = "no cap stated" if run.max_staleness is None else f"cap {run.max_staleness}"
    sides = [(run.trainer_gpus, "train"), (run.sampler_gpus, "sample"), (run.colocated_gpus, "do both")]
    layout = ", ".join(f"{numbers.count(gpus)} {does}" for gpus, does in sides if gpus)
    return [
        Fact(
            "Token staleness",
            numbers.NO_DATA if tokens is None else f"{numbers.significant(tokens.mean)} mean",
            cap if tokens is None else f"p95 {tokens.p95}, max {tokens.max}, {cap}",
        ),
        Fact("GPUs", numbers.count(run.n_gpus), layout),
        Fact("Training steps", numbers.count(run.steps), numbers.tokens(run.tokens_trained)),
    ]
