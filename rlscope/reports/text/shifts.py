"""Events of a run in words: a sentence for each, with what explains it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.analysis.shifts import RunEvent, Shift, ShiftCause, ShiftedQuantity
from rlscope.reports.blocks import Bullets

TITLE: Final = "What changed"
NO_EVENTS: Final = "no lasting change of step time, throughput, lengths, staleness or reward"


_QUANTITIES: Final[Mapping[ShiftedQuantity, tuple[str, Callable[[float], str]]]] = {
    "step_s": ("median step time", fmt.duration),
    "trained_tokens_per_s": ("throughput", fmt.tokens_per_second),
    "response_tokens": ("mean response length", fmt.tokens),
    "staleness_versions": ("mean staleness", fmt.versions),
    "reward": ("mean reward", fmt.significant),
}
_CAUSES: Final[Mapping[ShiftCause | None, str]] = {
    "weight_updates": "Most of the change is in weight updates.",
    "other_activities": "Most of the change is in checkpoints, evaluations and other activities of the trainers.",
    "training": "Most of the change is in training itself.",
    "waits": "Most of the change is in the trainers' waits.",
    None: "Nothing recorded explains it.",
}


def event_sentence(event: RunEvent, started_ns: int) -> str:
    """Return what changed at a step, with its cause. started_ns: start of the run, UTC epoch."""
    after = fmt.duration((event.time_ns - started_ns) / 1e9)
    what = fmt.listed([_shift_words(shift) for shift in event.shifts])
    return f"Step {fmt.count(event.step)}, after {after}: {what}. {_cause_words(event)}".rstrip()


def _shift_words(shift: Shift) -> str:
    (name, write), ratio = _QUANTITIES[shift.quantity], shift.change_ratio
    verb = "rose" if shift.after > shift.before else "fell"
    by = "" if ratio is None else f" ({fmt.signed_percent(ratio)})"
    return f"{name} {verb} from {fmt.between(write(shift.before), write(shift.after))}{by}"


def _cause_words(event: RunEvent) -> str:
    if event.cause == "engines":
        return f"{fmt.listed(event.workers)} started or ended then."
    if event.cause == "lengths":
        longer = [shift.after > shift.before for shift in event.shifts if shift.quantity == "step_s"]
        size = "longer" if any(longer) else "shorter"
        return f"{size.capitalize()} responses make steps {size}." if longer else ""
    return _CAUSES[event.cause]


def events_block(events: Sequence[RunEvent], started_ns: int) -> Bullets:
    """Return a line for each event."""
    return Bullets([event_sentence(event, started_ns) for event in events], "·")
