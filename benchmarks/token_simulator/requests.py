"""A request and the group it belongs to: plain state that engines, queue and trainer pass on."""

from dataclasses import dataclass, field
from typing import NamedTuple


class VersionRun(NamedTuple):
    """Output tokens [start, end) that one policy version sampled."""

    version: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Request:
    """One sample. Its tokens lie in stints: ranges of passes of its engine, each pass giving one token."""

    group: "Group"
    member: int
    prompt_tokens: int
    length_tokens: int
    is_capped: bool
    submitted_s: float
    pause_after_tokens: int | None = None
    """Tokens after which it waits for its environment; None when it does not, or no more."""
    pause_s: float = 0.0
    started_s: float | None = None
    joined_pass: int = 0
    stints: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    generated_tokens: int = 0
    """Before the present stint."""
    waited_s: float = 0.0
    preemptions: int = 0
    runs: list[VersionRun] = field(default_factory=list[VersionRun])
    """Set when it is finished."""
    finished_s: float = 0.0

    @property
    def sample_id(self) -> str:
        """Unique in the run."""
        return f"{self.group.group_id}-{self.member}"

    @property
    def held_tokens(self) -> int:
        """Tokens that its KV holds when it is not running."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(slots=True, eq=False)
class Group:
    """The samples of one prompt."""

    group_id: str
    admitted_version: int
    """Version that its engine held when it was admitted: none of its tokens is older."""
    requests: list[Request] = field(default_factory=list[Request])
    unfinished: int = 0
    queued_s: float = 0.0
    taken_s: float = 0.0
    """When it left the queue."""

    @property
    def oldest_version(self) -> int:
        """Version of its oldest token, once it is finished."""
        return min(request.runs[0].version for request in self.requests)

    @property
    def response_tokens(self) -> int:
        """Of all its samples, once it is finished."""
        return sum(request.length_tokens for request in self.requests)

    @property
    def prompt_tokens(self) -> int:
        """Of all its samples."""
        return sum(request.prompt_tokens for request in self.requests)
