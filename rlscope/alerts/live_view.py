"""What one look at a run that is being written shows: the alerts, and the facts that a terminal draws. No wording."""

from collections.abc import Mapping
from dataclasses import dataclass

from rlscope.alerts.alert import Alert
from rlscope.analysis import TokenStaleness


@dataclass(frozen=True, slots=True)
class SideState:
    """What the workers of one role did in the last five minutes that are known."""

    role: str
    workers: int
    gpu_count: int
    state_ratios: Mapping[str, float]
    """Share of the role's GPU-seconds by the ledger's state, 0..1, largest first; empty while nothing is known."""


@dataclass(frozen=True, slots=True)
class SilentWorker:
    """A worker that never said it stopped and has not been heard of."""

    worker_id: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """The run as of its last evaluated tick, over the last five minutes that are known; None is no data."""

    run_id: str
    started_ns: int
    steps: int
    """Optimizer steps so far: those of the trainer that recorded most."""
    last_step_end_ns: int | None
    sides: tuple[SideState, ...]
    running_per_engine: float | None
    waiting_requests: float | None
    kv_used_ratio: float | None
    staleness: TokenStaleness | None
    queue_depth_samples: float | None
    trained_tokens_per_s: float | None
    silent_workers: tuple[SilentWorker, ...]
    """Those that a terminal should name: not heard of for longer than a flush takes."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """The answer to one poll."""

    now_ns: int
    evaluated_ns: int | None
    """The last tick that was evaluated; None before the first."""
    alerts: tuple[Alert, ...]
    """Those that fire, and those that were resolved since the poll before."""
    facts: LiveFacts | None
    """None while the folder holds no run."""
    ended: bool
    """Whether every worker said that it stopped and all of its files were seen, or none was heard of for long."""
    problems: tuple[str, ...]
    """What the watcher should know about the data, one sentence each."""
