"""The queue between samplers and trainers, and the way of new weights back."""

from typing import Final, NamedTuple

from rlscope.analysis import Analysis
from rlscope.report.charts import queue, sampling
from rlscope.report.figure import Drawn, Figure, drawn, drawn_frame, update_moments
from rlscope.report.queue_words import updates_sentence, waits_frame, waits_sentence


class QueueSection(NamedTuple):
    """What the section shows."""

    depth: Drawn
    waits: Drawn
    wait_counts: Drawn
    updates: Drawn


def queue_section(analysis: Analysis) -> QueueSection:
    """The section's figures."""
    answers = analysis.answers
    counts, spread = answers.get("queue_wait_counts"), answers.get("weight_update_spread")
    return QueueSection(
        depth=drawn(_DEPTH, analysis),
        waits=drawn_frame(
            _WAITS,
            "figure-queue-waits",
            waits_frame(answers.get("queue_waits")),
            analysis.run,
            updates_s=update_moments(analysis),
        ),
        wait_counts=drawn(_saying(_COUNTS, waits_sentence(counts)), analysis),
        updates=drawn(_saying(_UPDATES, updates_sentence(spread)), analysis),
    )


def _saying(figure: Figure, sentence: str) -> Figure:
    return figure._replace(reading=f"{figure.reading} {sentence}".strip())


_NO_TIMES: Final = "no delivery says when its sample was queued"
_DEPTH: Final = Figure(
    "Queue depth",
    "Samples that are finished and not yet taken. Empty: samplers are the slower side. Full: trainers are. "
    "Healthy: in between.",
    "queue_depth", "depth_mean_samples", sampling.queue_depth, "the run does not report queue depths",
    True,
)  # fmt: skip
_WAITS: Final = Figure(
    "Waiting in the queue, over time",
    "The wait of the samples that left the queue at each time, used or dropped: ticks are medians, bars hold 90%. "
    "Healthy: level and shorter than a step; a wait that grows makes tokens older and older.",
    "queue_waits", "wait_p50_s", queue.queue_waits, _NO_TIMES, False, ("queue_waits",),
)  # fmt: skip
_COUNTS: Final = Figure(
    "Waiting in the queue, all samples",
    "Healthy: a heap at the left, and nothing dropped at its right.",
    "queue_wait_counts", "trained", queue.queue_wait_counts, _NO_TIMES,
)  # fmt: skip
_UPDATES: Final = Figure(
    "Weight updates, from publication to the last engine",
    "Each line goes from the first engine that runs a version to the last, counted from the start of its publication. "
    "Healthy: low beside a training step, and short lines, that is, engines that change together.",
    "weight_update_spread", "to_last_s", queue.weight_update_spread,
    "no engine recorded applying a version whose publication is recorded", True,
)  # fmt: skip
