"""How training scales with the trainer GPUs, in words: measured from which runs or assumed, and how surely."""

from collections.abc import Mapping
from typing import Final

from rlscope.model.forecast import Spread
from rlscope.model.other_run import OtherCaution
from rlscope.model.outlook import Outlook
from rlscope.model.training_rate import TrainingRate
from rlscope.report import numbers

OTHER_CAUTIONS: Final[Mapping[OtherCaution, str]] = {
    "same_trainers": "it has as many trainer GPUs as this run, so it says nothing of how training scales.",
    "model_not_recorded": "the two runs do not both say what their model is: it is taken to be the same.",
    "other_settings": "its config says something else of training; what that changes is taken for scaling.",
    "other_lengths": "its samples are much longer or shorter; what that changes is taken for scaling.",
}


def scaling_exponent(training: TrainingRate) -> Spread:
    """The exponent of the best estimate, and the interval of its draws."""
    _, low, high = Spread.of(training.exponent_draws)
    return Spread(training.scaling_exponent, low, high)


def scaling_sentence(outlook: Outlook) -> str:
    """How the trainers' rate grows with their number, and how that is known."""
    training = outlook.calibration.training
    middle, low, high = (numbers.significant(each, 2) for each in scaling_exponent(training))
    power = f"{middle} (90% between {low} and {high})"
    if not training.scaling_seen_at:
        return (
            f"How training scales is assumed: as the number of trainer GPUs to the power {power}. A run with another "
            "number of them, named with --also, measures it."
        )
    counts = sorted({training.seen_gpus, *training.scaling_seen_at})
    listed = f"{', '.join(map(numbers.count, counts[:-1]))} and {numbers.count(counts[-1])}"
    runs = 1 + sum("same_trainers" not in other.cautions for other in outlook.others)
    return (
        f"How training scales is measured from {numbers.count(runs)} runs, with {listed} trainer GPUs: as their number "
        f"to the power {power}."
    )


def other_run_lines(outlook: Outlook) -> list[str]:
    """What to be careful with in the other runs."""
    lines = [f"{other.run_id}: {OTHER_CAUTIONS[caution]}" for other in outlook.others for caution in other.cautions]
    if outlook.calibration.training.scaling_contradicted:
        lines.append(
            "No way of scaling explains how fast the other runs train beside this one: they differ in more than their "
            "trainer GPUs, and the interval is the wider for it."
        )
    return lines
