"""What is known of every sample and group that was started, as lists by their number. No behaviour of its own.

Group g holds the samples g * S .. g * S + S - 1. Lists and not arrays: the simulation touches one entry at a time, and
what follows from whole columns is worked out at the end.
"""

from typing import Final, NamedTuple

from rlscope.model.simulate.draws import Draws

OPEN: Final = 0
"""Some sample of the group is not finished."""
QUEUED: Final = 1
"""Finished and not taken; in the queue, or held back because it is full."""
TRAINED: Final = 2
DROPPED: Final = 3
FILTERED: Final = 4
_BLOCK_GROUPS: Final = 256
"""Groups drawn at a time. The draws, and so the results, depend on it."""
NEVER: Final = -1


class Piece(NamedTuple):
    """Tokens that a sample generated before it was preempted."""

    sample: int
    start_pass: int
    tokens: int


class Samples:
    """One entry per sample, or per group where the name says so."""

    def __init__(self, draws: Draws, group_size: int) -> None:
        self.group_size = group_size
        self._draws = draws
        self.groups_started = 0
        self.length_tokens: list[int] = []
        self.left_tokens: list[int] = []
        """Tokens to generate after the last admission."""
        self.engine: list[int] = []
        self.start_pass: list[int] = []
        """Passes its engine had done at the last admission; NEVER while it is in no batch."""
        self.first_version: list[int] = []
        """Version of its first token; NEVER before it is admitted."""
        self.admitted_s: list[float] = []
        self.finished_s: list[float] = []
        """NEVER while it is not finished."""
        self.pieces: list[Piece] = []
        self.group_unfinished: list[int] = []
        self.group_is_kept: list[bool] = []
        self.group_outcome: list[int] = []
        self.group_first_version: list[int] = []
        """Oldest version of any of its tokens; set when all samples are finished."""
        self.group_ready_version: list[int] = []
        """Version published when its last sample finished."""
        self.group_consumer_version: list[int] = []
        self.group_step: list[int] = []

    def start_group(self) -> range:
        """The samples of one more group."""
        if self.groups_started == len(self.group_outcome):
            self._draw()
        first = self.groups_started * self.group_size
        self.groups_started += 1
        return range(first, first + self.group_size)

    def members(self, group: int) -> slice:
        """Where a group's samples are."""
        return slice(group * self.group_size, (group + 1) * self.group_size)

    def tokens_of(self, groups: list[int]) -> int:
        """Response tokens of whole groups."""
        return sum(sum(self.length_tokens[self.members(group)]) for group in groups)

    def _draw(self) -> None:
        lengths, kept = self._draws.groups(_BLOCK_GROUPS)
        self.length_tokens += lengths
        self.left_tokens += lengths
        for column in (self.engine, self.start_pass, self.first_version):
            column += [NEVER] * len(lengths)
        for column in (self.admitted_s, self.finished_s):
            column += [float(NEVER)] * len(lengths)
        self.group_unfinished += [self.group_size] * len(kept)
        self.group_is_kept += kept
        self.group_outcome += [OPEN] * len(kept)
        for column in (self.group_first_version, self.group_ready_version, self.group_consumer_version):
            column += [NEVER] * len(kept)
        self.group_step += [NEVER] * len(kept)
