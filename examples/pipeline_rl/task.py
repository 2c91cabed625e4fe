"""The task: write digits that add up to the target, then stop. A program checks the answer; no torch here.

Targets are log-normal, so the lengths of good answers have a long tail.
"""

import math
import random
from collections.abc import Sequence
from typing import Final

END: Final = 10
ANSWER_VOCABULARY: Final = 11
"""Digits and END: all that the model can sample."""
SEPARATOR: Final = 11
BEGIN: Final = 12
PAD: Final = 13
VOCABULARY: Final = 14

PROMPT_TOKENS: Final = 5
SMALLEST_TARGET: Final = 5
LARGEST_TARGET: Final = 600
MEDIAN_TARGET: Final = 70
LOG_SPREAD: Final = 0.8
ENDLESS_PENALTY: Final = 0.5
WORST_REWARD: Final = -2.0


def draw_target(random_source: random.Random) -> int:
    """A target whose logarithm is normal, cut to the range that three digits and the context can hold."""
    target = round(random_source.lognormvariate(math.log(MEDIAN_TARGET), LOG_SPREAD))
    return min(max(target, SMALLEST_TARGET), LARGEST_TARGET)


def prompt_of(target: int) -> tuple[int, ...]:
    """The prompt: begin, three digits, separator."""
    return (BEGIN, target // 100, target // 10 % 10, target % 10, SEPARATOR)


def reward_of(target: int, response: Sequence[int]) -> float:
    """1 for the exact sum, less by the logarithm of how far off it is and for an answer without end; -2 at worst."""
    ended = bool(response) and response[-1] == END
    error = abs(math.log((sum(response) - END * ended + 1) / (target + 1)))
    return max(WORST_REWARD, 1.0 - error - (0.0 if ended else ENDLESS_PENALTY))
