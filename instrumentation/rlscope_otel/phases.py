"""The context managers of a training loop: each is one row, which is recorded even if the block raises.

The host's exceptions pass through unchanged. Errors in the hooks themselves are counted and never raised.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from rlscope_otel import conventions as c
from rlscope_otel.faults import Faults
from rlscope_otel.spans import open_entry

Moment = tuple[int, int, float, float]
"""Token staleness, number of tokens, and the sum and sum of squares of their importance ratio."""
FreshMoment = tuple[int, float, float]
"""Number of fresh tokens, and the sum and sum of squares of their importance ratio.

A token is fresh if the weights being trained sampled it, on a context that they also computed. There are none while the
trainer has weights that it has not published.
"""

_MOST_OPEN = 64


Keep = Callable[[str, int, int, Mapping[str, object]], None]
"""Takes the name, the start, the end and the attributes of a phase that has ended; raises nothing."""


class PhaseSource:
    """Shared by all phases of a run; `keep` is None if the run is inactive."""

    __slots__ = ("_entered", "faults", "keep", "now_ns")

    def __init__(self, keep: Keep | None, now_ns: Callable[[], int], faults: Faults) -> None:
        self.keep = keep
        self.now_ns = now_ns
        self.faults = faults
        self._entered: dict[Phase, None] = {}

    def entered(self, phase: "Phase") -> None:
        """Note that a phase has begun."""
        # A host that enters phases and never leaves them must not fill its memory.
        if len(self._entered) < _MOST_OPEN:
            self._entered[phase] = None

    def left(self, phase: "Phase") -> None:
        """Note that a phase has ended."""
        self._entered.pop(phase, None)

    def open(self) -> list[Mapping[str, object]]:
        """Return what the worker is in the middle of, as the entries of `open` in its file. Any thread may call it."""
        try:
            entered = tuple(self._entered)
        except RuntimeError:  # Another thread entered a phase meanwhile; the next flush looks again.
            return []
        begun = ((phase.since_ns, phase) for phase in entered)
        return [open_entry(phase.name, since_ns, phase.attributes) for since_ns, phase in begun if since_ns is not None]


class Phase:
    """An interval of a worker's time."""

    __slots__ = ("_source", "attributes", "name", "since_ns")

    def __init__(self, source: PhaseSource, name: str, values: Iterable[tuple[c.Attribute, object]] = ()) -> None:
        self._source = source
        self.name = name
        """Name of its span."""
        self.since_ns: int | None = None
        """When it began; None if it is not open."""
        self.attributes: dict[str, object] = {}
        """Attributes that are known so far."""
        if source.keep is not None:
            self._keep(values)

    def __enter__(self) -> Self:
        source = self._source
        if source.keep is not None:
            self.since_ns = source.now_ns()
            source.entered(self)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        start_ns, self.since_ns = self.since_ns, None
        if start_ns is not None:
            self._source.left(self)
            self.between(start_ns, self._source.now_ns())

    def between(self, start_ns: int, end_ns: int) -> None:
        """Record an interval in the past, instead of a `with` block: for what the host reports only afterwards."""
        keep = self._source.keep
        if keep is not None:
            keep(self.name, start_ns, end_ns, self.attributes)

    def _keep(self, values: Iterable[tuple[c.Attribute, object]]) -> None:
        """Hold attribute values of the convention's types; one that cannot be converted is left out and counted."""
        for attribute, value in values:
            if value is None:
                continue
            try:
                self.attributes[attribute.key] = attribute.type(value)  # pyright: ignore[reportArgumentType]
            except Exception as error:  # A host's tensor may fail in any way.
                self._source.faults.note(f"{self.name} {attribute.key}", error)


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
        values = {
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
        self._keep((c.TRAIN[column], value) for column, value in values.items())
        # A host may give anything, and its tensors may fail in any way.
        if importance is not None:
            self._source.faults.attempt(f"{self.name} importance", self._keep_importance, importance)
        if fresh is not None:
            self._source.faults.attempt(f"{self.name} fresh", self._keep_fresh, fresh)

    def _keep_importance(self, importance: Iterable[Moment]) -> None:
        moments = [(int(s), int(n), float(w), float(w2)) for s, n, w, w2 in importance]
        self.attributes.update({key: tuple(moment[at] for moment in moments) for at, key in enumerate(c.IMPORTANCE)})

    def _keep_fresh(self, fresh: FreshMoment) -> None:
        tokens, sum_w, sum_w2 = fresh
        values = {"fresh_tokens": tokens, "fresh_sum_w": sum_w, "fresh_sum_w2": sum_w2}
        self._keep((c.TRAIN[column], value) for column, value in values.items())


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
            values = {"bytes": bytes, "label": label, "paused": paused, "kv": kv}
            self._keep((c.WEIGHTS[column], value) for column, value in values.items())
