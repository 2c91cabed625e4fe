"""The answer to a what-if question as a JSON document; all figures come from the model."""

from dataclasses import dataclass

from rlscope.document import Document, extended
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import Obstacle, WhatIf
from rlscope.model.warnings import ModelWarning
from rlscope.reports.documents.model import ModeledLayout, TrainingScaling, modeled_layout, training_scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfDocument(Document):
    """Output of `rlscope what-if --json`: the current run beside the run with the requested changes."""

    asked: Change
    """The requested changes, by option name."""
    current: ModeledLayout
    """The current run, as modeled."""
    predicted: ModeledLayout
    """The run after the changes, as modeled. If the run cannot run this way, only the layout is set."""
    gain_ratio: Estimate | None
    """Trained tokens per second of `predicted` over those of `current`, less 1: the median of the posterior draws."""
    obstacle: Obstacle | None
    """Reason why the run cannot run with the changes; None if it can."""
    chose_layout: bool
    """Whether only the total number of GPUs or a target was given, so that rlscope chose the fastest split."""
    warnings: tuple[ModelWarning, ...]
    """Checks that the model failed, aspects of this change that the run has no data on, and further warnings about the
    model of this run."""
    training_scaling: TrainingScaling
    """Scaling of training with the number of trainer GPUs."""


def what_if_document(model: ModelResult, answer: WhatIf) -> WhatIfDocument:
    """Return the model's answer to one what-if question."""
    return extended(
        WhatIfDocument,
        answer,
        current=modeled_layout(answer.now, answer.now, answer.calibration.steps_per_version),
        predicted=modeled_layout(answer.predicted, answer.now, answer.steps_per_version),
        warnings=tuple(dict.fromkeys((*answer.warnings, *model.warnings))),
        training_scaling=training_scaling(model),
    )
