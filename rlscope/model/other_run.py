"""Another run of the same model and trainers: its train steps say how training scales, its cautions how surely."""

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from rlscope.model.observed import Observed, TrainerSteps
from rlscope.model.scaling_exponent import StepsElsewhere

OtherCaution = Literal["same_trainers", "model_not_recorded", "other_settings", "other_lengths"]
"""same_trainers: it has as many trainer GPUs, so it says nothing of scaling. model_not_recorded: nothing says that it
is the same model. other_settings: what its config says of training is not the same. other_lengths: its samples are so
much longer or shorter that attention alone may have changed the time of a token."""

_OTHER_LENGTHS: Final = 1.25
"""Mean tokens of a sample over those of the other run, either way. Attention is a tenth or so of a step at usual
lengths, and grows with them: a quarter longer costs some 2 %, which is what two runs are taken to differ by."""


@dataclass(frozen=True, slots=True, eq=False)
class OtherRun:
    """The train steps of its steady stretch."""

    run_id: str
    trainer_gpus: int
    steps: TrainerSteps
    cautions: tuple[OtherCaution, ...] = ()

    @property
    def elsewhere(self) -> StepsElsewhere:
        """Tokens and seconds of the steps that trained."""
        trained = self.steps.trained
        return StepsElsewhere(
            self.trainer_gpus, self.steps.tokens[trained].astype(np.float64), self.steps.train_s[trained]
        )

    def beside(self, observed: Observed) -> "OtherRun":
        """With the cautions that show beside the run that is calibrated."""
        ratio = _sample_tokens(self.steps) / _sample_tokens(observed.steps)
        found = list(self.cautions)
        if self.trainer_gpus == observed.trainer_gpus:
            found.append("same_trainers")
        if not 1.0 / _OTHER_LENGTHS <= ratio <= _OTHER_LENGTHS:
            found.append("other_lengths")
        return replace(self, cautions=tuple(found))


def _sample_tokens(steps: TrainerSteps) -> float:
    trained = steps.trained
    return float(steps.tokens[trained].sum()) / max(1.0, float(steps.samples[trained].sum()))
