"""How full every engine was, what waited in it, and its KV cache, over time."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.report.charts import sampling
from rlscope.report.figure import Drawn, Figure, drawn_all

_NO_STEPS: Final = "no engine wrote engine steps"


class EnginesSection(NamedTuple):
    """What the section shows."""

    figures: list[Drawn]


def engines_section(analysis: Analysis) -> EnginesSection:
    """The section's figures."""
    return EnginesSection(drawn_all(_FIGURES, analysis))


_FIGURES: Final = (
    Figure(
        "Running requests",
        "The batch of every engine, averaged over time. Low and level: too few requests arrive. Saw teeth down to "
        "zero: engines drain, by a barrier or by weight updates. Healthy: high and level.",
        "batch_size", "running_mean", sampling.batch_size, _NO_STEPS,
    ),
    Figure(
        "Requests that wait in the engine",
        "Above zero, the engine has more to do than fits: more engines, or more KV cache, would help. Healthy: near "
        "zero.",
        "waiting_requests", "waiting_mean", sampling.waiting_requests, _NO_STEPS,
    ),
    Figure(
        "KV cache in use",
        "Tokens held in the KV cache. Near the capacity, requests are preempted or wait. Healthy: high, and below the "
        "capacity.",
        "kv_use", "kv_used_mean_tokens", sampling.kv_use, "no engine reported kv_used_tokens",
    ),
)  # fmt: skip
