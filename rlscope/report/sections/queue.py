"""The queue between samplers and trainers, and the way of new weights back."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.report.charts import sampling, training
from rlscope.report.figure import Drawn, Figure, drawn_all


class QueueSection(NamedTuple):
    """What the section shows."""

    figures: list[Drawn]


def queue_section(analysis: Analysis) -> QueueSection:
    """The section's figures."""
    return QueueSection(drawn_all(_FIGURES, analysis))


_FIGURES: Final = (
    Figure(
        "Queue depth",
        "Samples that are finished and not yet taken. Empty: samplers are the slower side. Full: trainers are. "
        "Healthy: in between.",
        "queue_depth", "depth_mean_samples", sampling.queue_depth, "the run does not report queue depths",
    ),
    Figure(
        "Weight updates, from publication to use",
        "For every version and engine, the time from the start of its publication until the engine runs it. Healthy: "
        "short beside a training step, and alike for all engines.",
        "weight_update_latency", "publish_to_applied_s", training.weight_update_latency,
        "no engine recorded applying a published version",
    ),
)  # fmt: skip
