"""The task: write digits that add up to the target, then stop. A program checks the answer; no torch here.

Targets are log-normal, so the lengths of good answers have a long tail.
"""

import math
import random
from collections.abc import Sequence
from typing import Final

SEPARATOR: Final = 10
END: Final = 11
PAD: Final = 12
BEGIN: Final = 13
VOCABULARY: Final = 14

PROMPT_TOKENS: Final = 5
SMALLEST_TARGET: Final = 5
LARGEST_TARGET: Final = 600
MEDIAN_TARGET: Final = 70
LOG_SPREAD: Final = 0.8


def draw_target(random_source: random.Random) -> int:
    """A target whose logarithm is normal, cut to the range that three digits and the context can hold."""
    target = round(random_source.lognormvariate(math.log(MEDIAN_TARGET), LOG_SPREAD))
    return min(max(target, SMALLEST_TARGET), LARGEST_TARGET)


def prompt_of(target: int) -> tuple[int, ...]:
    """The prompt: begin, three digits, separator."""
    return (BEGIN, target // 100, target // 10 % 10, target % 10, SEPARATOR)


def reward_of(target: int, response: Sequence[int]) -> float:
    """1 for the exact sum, less in proportion to the error, -1 for an answer that is no number or does not stop."""
    if not response or response[-1] != END or any(token > 9 for token in response[:-1]):
        return -1.0
    return max(-1.0, 1.0 - abs(sum(response[:-1]) - target) / target)
