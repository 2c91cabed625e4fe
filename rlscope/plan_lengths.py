"""How long the responses and prompts of a plan are: as a law that it states, or as an earlier run recorded them.

Of a recorded run the samples count that began in its steady stretch, or in all of it where it has none; those that did
not end are censored. Not covered: how the lengths of another model, or of other prompts, would differ.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import polars as pl

from rlscope.model.length_guess import law_of_mean, law_of_percentiles
from rlscope.model.lengths import LengthLaw
from rlscope.observation import UnobservableError, observe_lengths
from rlscope.plan_file import PlanFile
from rlscope.query import Argument, ask
from rlscope.run_facts import steady_window
from rlscope.store import Run, open_run

_STATED: Final = ("mean_tokens", "cv_ratio", "percentiles")
_ALL_NS: Final = 2**62
_MOST_GROUPS: Final = 2000
"""Of the run, the last ones: enough to know how alike their members are."""


class PlannedLengths(NamedTuple):
    """What a plan says of lengths."""

    law: LengthLaw
    prompt_tokens: float


def planned_lengths(file: PlanFile) -> PlannedLengths:
    """As the plan states them or its run recorded them. Raises RlscopeError."""
    lengths = file.lengths
    if lengths.from_run is not None:
        return _recorded(file, lengths.from_run)
    if lengths.prompt_tokens is None:
        raise file.text.error("lengths", "prompt_tokens", found="no such key", expected="it, or from_run")
    return PlannedLengths(_stated(file), lengths.prompt_tokens)


def _recorded(file: PlanFile, name: str) -> PlannedLengths:
    lengths, folder = file.lengths, file.text.path.parent / name
    also = next((key for key in _STATED if getattr(lengths, key) is not None), None)
    if also is not None:
        raise file.text.error("lengths", also, found=f"both from_run and {also}", expected="one of them")
    with open_run(folder) as run:
        try:
            seen = observe_lengths(_counted(run), run.config.max_output_tokens)
        except UnobservableError as error:
            found = f"nothing in {folder}: {error}"
            expected = "a run that recorded its samples"
            raise file.text.error("lengths", "from_run", found=found, expected=expected) from error
    prompt_tokens = seen.prompt_tokens if lengths.prompt_tokens is None else lengths.prompt_tokens
    return PlannedLengths(_capped(file, seen.lengths), prompt_tokens)


def _counted(run: Run) -> Mapping[str, pl.DataFrame]:
    window = steady_window(ask(run, "training_steps"))
    stretch = (0, _ALL_NS) if window is None else (window.start_ns, window.end_ns)
    arguments: dict[str, Argument] = {"from_ns": stretch[0], "to_ns": stretch[1], "most_groups": _MOST_GROUPS}
    return {name: ask(run, name, arguments) for name in ("length_counts", "group_members")}


def _capped(file: PlanFile, law: LengthLaw) -> LengthLaw:
    """Under the plan's cap, where it has one; nobody saw how much longer responses are than the cap of the run."""
    cap_tokens = file.lengths.cap_tokens
    if cap_tokens is None:
        return law
    if law.cap_tokens is not None and law.capped_ratio and cap_tokens > law.cap_tokens:
        raise file.text.error(
            "lengths",
            "cap_tokens",
            found=f"{cap_tokens:,}",
            expected=f"at most {law.cap_tokens:,}, at which the run cut responses: nobody saw how long they would be",
        )
    return law.with_cap(cap_tokens)


def _stated(file: PlanFile) -> LengthLaw:
    lengths = file.lengths
    if (lengths.mean_tokens is None) == (lengths.percentiles is None):
        found = "neither" if lengths.mean_tokens is None else "both"
        expected = "either mean_tokens with cv_ratio, or percentiles, or from_run"
        raise file.text.error("lengths", "mean_tokens", found=found, expected=expected)
    try:
        if lengths.percentiles is not None:
            return law_of_percentiles(_per_cents(lengths.percentiles), lengths.cap_tokens)
        if lengths.mean_tokens is None or lengths.cv_ratio is None:
            expected = "how much lengths vary: standard deviation over mean"
            raise file.text.error("lengths", "cv_ratio", found="no such key", expected=expected)
        return law_of_mean(lengths.mean_tokens.median, lengths.cv_ratio, lengths.cap_tokens)
    except ValueError as error:
        name = "mean_tokens" if lengths.percentiles is None else "percentiles"
        expected = "lengths that a lognormal law under its cap can have"
        raise file.text.error("lengths", name, found=str(error), expected=expected) from error


def _per_cents(percentiles: dict[str, float]) -> dict[float, float]:
    """p50 or "p99.9" as 50 or 99.9; ValueError."""
    if not all(name.startswith("p") for name in percentiles):
        raise ValueError(f"percentiles named {', '.join(percentiles)} and not p50, p90, ...")
    return {float(name.removeprefix("p")): tokens for name, tokens in percentiles.items()}
