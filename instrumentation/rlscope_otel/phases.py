"""The context managers of a training loop: each is one row, which is recorded even if the block raises.

The host's exceptions pass through unchanged. Errors in the hooks themselves are counted and never raised.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rlscope_otel.faults import Faults
from rlscope_otel.spans import Kind, Values

Moment = tuple[int, int, float, float]
"""Token staleness, number of tokens, and the sum and sum of squares of their importance ratio."""
FreshMoment = tuple[int, float, float]
"""Number of fresh tokens, and the sum and sum of squares of their importance ratio.

A token is fresh if the weights being trained sampled it, on a context that they also computed. There are none while the
trainer has weights that it has not published.
"""

Keep = Callable[[Kind, int, int, Values], None]
"""Takes the kind, the start, the end and the values of a phase that has ended; raises nothing."""
_NOTHING: Values = {}
_MOST_OPEN = 64
_SHOWN_OPEN = ("reason", "step", "version")
"""Values of a phase that has not ended in the worker's file."""


@dataclass(slots=True)
class PhaseSource:
    """Shared by all phases of a run; `keep` is None if the run is inactive."""

    keep: Keep | None
    now_ns: Callable[[], int]
    faults: Faults
    entered: "dict[Phase, None]" = field(default_factory=dict["Phase", None])
    """Phases that have not ended."""

    def open(self) -> list[Mapping[str, object]]:
        """Return what the worker is in the middle of, as the entries of `open` in its file. Any thread may call it."""
        try:
            entered = tuple(self.entered)
        except RuntimeError:  # Another thread entered a phase meanwhile; the next flush looks again.
            return []
        entries = (phase.entry() for phase in entered)
        return [entry for entry in entries if entry["since_ns"] is not None]


class Phase:
    """An interval of a worker's time."""

    __slots__ = ("_kind", "_since_ns", "_source", "_values")

    def __init__(self, source: PhaseSource, kind: Kind, values: Values = _NOTHING) -> None:
        self._source = source
        self._kind = kind
        self._since_ns: int | None = None
        """When it began; None if it is not open."""
        self._values: dict[str, object] = {}
        """Values that are known so far."""
        if values and source.keep is not None:
            self._keep(values)

    def __enter__(self) -> Self:
        source = self._source
        if source.keep is not None:
            self._since_ns = source.now_ns()
            # A host that enters phases and never leaves them must not fill its memory.
            if len(source.entered) < _MOST_OPEN:
                source.entered[self] = None
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        start_ns, self._since_ns = self._since_ns, None
        if start_ns is not None:
            self._source.entered.pop(self, None)
            self.between(start_ns, self._source.now_ns())

    def between(self, start_ns: int, end_ns: int) -> None:
        """Record an interval in the past, instead of a `with` block: for what the host reports only afterwards."""
        keep = self._source.keep
        if keep is not None:
            keep(self._kind, start_ns, end_ns, self._values)

    def entry(self) -> Mapping[str, object]:
        """Return its entry in the worker's file while it is open: its kind, its start and its known values."""
        known = {name: self._values[name] for name in _SHOWN_OPEN if name in self._values}
        return {"doing": self._kind.doing, "since_ns": self._since_ns, **known}

    def _keep(self, values: Values) -> None:
        """Hold values in the types of the format; one that cannot be converted is left out and counted."""
        for column, value in values.items():
            if value is None:
                continue
            attribute = self._kind.attributes[column]
            try:
                self._values[column] = attribute.type(value)  # pyright: ignore[reportArgumentType]
            except Exception as error:  # A host's tensor may fail in any way.
                self._source.faults.note(f"{self._kind.name} {attribute.key}", error)


class TrainStep(Phase):
    """One optimizer step; pass values that are known only later to `record`."""

    __slots__ = ()

    def record(
        self,
        *,
        loss: float | None = None,
        grad_norm: float | None = None,
        entropy: float | None = None,
        reward_mean: float | None = None,
        clip_ratio: float | None = None,
        truncated_ratio: float | None = None,
        importance: Iterable[Moment] | None = None,
        fresh: FreshMoment | None = None,
        version_out: int | None = None,
        samples: int | None = None,
        tokens: int | None = None,
    ) -> None:
        """Add values to the step's row; a later value replaces an earlier one."""
        if self._source.keep is None:
            return
        self._keep(
            {
                "loss": loss,
                "grad_norm": grad_norm,
                "entropy": entropy,
                "reward_mean": reward_mean,
                "clip_ratio": clip_ratio,
                "truncated_ratio": truncated_ratio,
                "version_out": version_out,
                "samples": samples,
                "tokens": tokens,
            }
        )
        # A host may give anything, and its tensors may fail in any way.
        if importance is not None:
            self._source.faults.attempt(f"{self._kind.name} importance", self._keep_importance, importance)
        if fresh is not None:
            self._source.faults.attempt(f"{self._kind.name} fresh", self._keep_fresh, fresh)

    def _keep_importance(self, importance: Iterable[Moment]) -> None:
        self._values["importance"] = [(int(s), int(n), float(w), float(w2)) for s, n, w, w2 in importance]

    def _keep_fresh(self, fresh: FreshMoment) -> None:
        tokens, sum_w, sum_w2 = fresh
        self._keep({"fresh_tokens": tokens, "fresh_sum_w": sum_w, "fresh_sum_w2": sum_w2})


class WeightUpdate(Phase):
    """One publication, transfer or application of a policy version."""

    __slots__ = ()

    def record(
        self,
        *,
        bytes: int | None = None,
        label: str | None = None,
        paused: bool | None = None,
        kv: str | None = None,
    ) -> None:
        """Add values to the update's row; a later value replaces an earlier one."""
        if self._source.keep is not None:
            self._keep({"bytes": bytes, "label": label, "paused": paused, "kv": kv})
