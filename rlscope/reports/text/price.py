"""The price of a layout or an action in words: tokens that are dropped, and long responses that are not trained."""

from typing import Final

from rlscope import format as fmt
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.price import Price

_LEAST_SHOWN: Final = 0.0005
"""Smallest share that does not read as 0%."""


def million_gpu_s(gpus: int, tokens_per_s: float | None) -> float | None:
    """GPU-seconds of all GPUs for a million trained tokens; None if the rate is unknown."""
    return 1e6 * gpus / tokens_per_s if tokens_per_s and gpus else None


def costly_words(price: Price, before: Price) -> str:
    """Reasons why a price is too high to pay without a test, as a predicate without a subject; empty without one."""
    parts: list[str] = []
    dropped, longest = price.dropped_ratio, price.longest_trained_ratio
    if dropped is not None and price.drops_much(before):
        now = before.dropped_ratio
        drops = "drops" if now is None or not now.value else f"raises drops from {share(now.value)} to"
        parts.append(f"{drops} {share(dropped.value)} of generated tokens")
    if longest is not None and price.loses_longest(before):
        trained = f"only {share(longest.value)}" if longest.value >= _LEAST_SHOWN else "none"
        parts.append(f"trains {trained} of the longest tenth of responses")
    return fmt.listed(parts)


def dropped_words(price: Price, before: Price) -> str:
    """Dropped share of the generated tokens, before and after; empty unless it differs notably."""
    dropped = price.dropped_ratio
    if dropped is None or not price.changes_drops(before):
        return ""
    return _change(before.dropped_ratio, share_words(dropped))


def longest_words(price: Price, before: Price) -> str:
    """Trained share of the longest tenth of responses, before and after; empty unless it differs notably."""
    longest = price.longest_trained_ratio
    if longest is None or not price.changes_longest(before):
        return ""
    return _change(before.longest_trained_ratio, share(longest.value))


def share_words(ratio: Estimate | None) -> str:
    """Write a modeled share with its interval; "no data" if it is unknown."""
    return fmt.NO_DATA if ratio is None else fmt.with_interval(lambda each: share(each or 0.0), *ratio)


def share(ratio: float) -> str:
    """Write a modeled share without a sign: 38%, 2.4%."""
    return fmt.gain(ratio).removeprefix("+")


def _change(before: Estimate | None, after: str) -> str:
    return after if before is None else f"{share(before.value)} → {after}"
