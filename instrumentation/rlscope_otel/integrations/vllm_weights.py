"""The weights of one vLLM engine: which version samples, and when it was loaded.

The version of a token is vLLM's own label when its pass ends, as in vLLM's `weight_versions`. Updates without a label
are counted, and the version source is `time_join`. An update is `paused` if no forward pass ran between its first and
its last call. Tokens of passes that did run are torn; so are, in an engine with labels, those sampled between the end
of an update and its label.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from rlscope_otel import schema
from rlscope_otel.integrations.versions import VersionNames
from rlscope_otel.recorder import Run

_DRAFT_BEGINNING = "start_draft_weight_update"
_BEGINNING = ("start_weight_update", _DRAFT_BEGINNING)
_ENDING = "finish_weight_update"

WEIGHT_CALLS = frozenset((*_BEGINNING, "update_weights", "reload_weights", _ENDING))
"""Calls that change weights. Those that load are part of an update that was begun, or an update of their own."""


def least_certain(*sources: str) -> str:
    """Return the least reliable of several version sources."""
    return max(sources, key=schema.VERSION_SOURCES.index)


@dataclass(slots=True)
class Update:
    """New weights on their way into the engine."""

    start_ns: int
    end_ns: int
    kv_recomputed: bool
    is_open: bool
    is_of_draft: bool = False
    """A draft model proposes tokens and samples none: its weights are no policy version."""
    label: str | None = None
    passes_meanwhile: int = 0
    calls_ns: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When the engine was paused for a call of the update."""


class Weights:
    """Follows the calls that change an engine's weights."""

    def __init__(self, run: Run, label: object, source: str) -> None:
        self._run = run
        self._names = VersionNames()
        self.version = self._names.applied(label)
        """The version that samples now."""
        self.source = source
        self.updates_begun = 0
        self._has_labels = bool(self.version)
        self._update: Update | None = None
        self._kv_was_reset = False
        self.is_changing = False
        """Whether the next pass has to be told of, by `pass_begins`."""
        self._counted = 0
        self._before_change: Callable[[], None] = lambda: None

    def before_change(self, action: Callable[[], None]) -> None:
        """Set the function to call before the version changes."""
        self._before_change = action

    def called(self, method: str, start_ns: int, end_ns: int) -> None:
        """The engine ran one of WEIGHT_CALLS on its workers."""
        update = self._update
        if update is None or method in _BEGINNING or (update.label is not None and not update.is_open):
            update = self._begin(start_ns, is_open=method in _BEGINNING)
            update.is_of_draft = method == _DRAFT_BEGINNING
        update.end_ns = end_ns
        update.calls_ns.append((start_ns, end_ns))
        if method == _ENDING:
            update.is_open = False

    def failed(self) -> None:
        """A call raised: nobody knows what the weights are now, and there is no version to record."""
        self._update = None

    def labelled(self, label: object, at_ns: int) -> None:
        """The engine got a new label for its weights."""
        version = self._names.ordinal_of(label)
        if self._update is None and version == self.version:
            return
        update = self._update or self._begin(at_ns, is_open=False)
        update.label = str(label)
        self._has_labels = True
        self._change_to(self._names.applied(label), "engine")

    def kv_reset(self) -> None:
        """The KV cache was thrown away, running requests included."""
        self._kv_was_reset = self.is_changing = True
        if self._update is not None:
            self._update.kv_recomputed = True

    def pass_begins(self) -> bool:
        """A forward pass begins; returns whether what it samples is torn."""
        self._kv_was_reset = False
        update = self._update
        if update is None:
            self.is_changing = False
            return False
        if not update.is_open and (update.label is not None or update.is_of_draft or not self._has_labels):
            self.close()
            self.is_changing = False
            return False
        update.passes_meanwhile += 1
        return not update.is_of_draft

    def close(self) -> None:
        """Record an update that has ended; one that has no label yet gets the next version."""
        update, self._update = self._update, None
        if update is None or update.is_open:
            return
        if update.is_of_draft:
            self._record_calls(update)
            return
        if update.label is None:
            self._counted += 1
            self._change_to(self._names.applied(f"update {self._counted} without a label"), "time_join")
        paused = not update.passes_meanwhile
        kv = "recomputed" if update.kv_recomputed else "kept"
        self._run.apply_weights(self.version, update.label, paused=paused, kv=kv).between(
            update.start_ns, update.end_ns
        )
        if not paused:
            self._record_calls(update)

    def _begin(self, start_ns: int, is_open: bool) -> Update:
        self.close()
        self._update = Update(start_ns, start_ns, self._kv_was_reset, is_open)
        self.is_changing = True
        self.updates_begun += 1
        return self._update

    def _record_calls(self, update: Update) -> None:
        """The engine generates between the calls of an update, and is idle during each."""
        for start_ns, end_ns in update.calls_ns:
            self._run.activity("weight_update").between(start_ns, end_ns)

    def _change_to(self, version: int, source: str) -> None:
        if version != self.version or source != self.source:
            self._before_change()
        self.version = version
        self.source = source
