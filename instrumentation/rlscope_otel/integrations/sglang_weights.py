"""The weights of one SGLang scheduler: which version samples, and when it was loaded.

SGLang loads weights in one call, or in several between `begin_weight_update` and `end_weight_update`; versions without
that session load them in several calls without marking the end, which is then the next forward pass. The label passed
with an update, or to `/update_weight_version`, is the version. Updates without a label are counted, and the version
source is `time_join`.
"""

from dataclasses import dataclass, field

from rlscope_otel.integrations.versions import VersionNames
from rlscope_otel.recorder import Run


@dataclass(slots=True)
class _Update:
    start_ns: int
    end_ns: int
    kv_recomputed: bool = True
    label: str | None = None
    passes_meanwhile: int = 0
    loads: int = 0


@dataclass(slots=True)
class Weights:
    """Follows the calls that change a scheduler's weights, in their order. Not for use by several threads at once."""

    run: Run
    version: int = 0
    """The version that samples now."""
    source: str = "engine"
    """Where the version of a token that is sampled now comes from."""
    _names: VersionNames = field(default_factory=VersionNames)
    _update: _Update | None = None
    _session_is_open: bool = False
    _unlabelled: int = 0

    def began(self, at_ns: int) -> None:
        """A session of loads began."""
        self._close()
        self._update = _Update(at_ns, at_ns)
        self._session_is_open = True

    def ended(self, at_ns: int) -> None:
        """The session ended."""
        self._session_is_open = False
        if self._update is not None:
            self._update.end_ns = at_ns
            # Without a label yet it may get one before the next pass.
            if self._update.label is not None:
                self._close()

    def loaded(self, start_ns: int, end_ns: int, *, kv_recomputed: bool) -> None:
        """One call put weights into the model; kv_recomputed says that no key or value of older weights is left."""
        update = self._update = self._update or _Update(start_ns, end_ns)
        # A load with a label sets the label before it returns.
        update.start_ns, update.end_ns = min(update.start_ns, start_ns), end_ns
        update.loads += 1
        update.kv_recomputed = kv_recomputed

    def failed(self) -> None:
        """A load failed: nobody knows what the weights are now, and there is no version to record."""
        self._update = None
        self._session_is_open = False

    def labelled(self, label: object, at_ns: int) -> None:
        """From now on tokens are labelled so; while a load runs, before it has returned."""
        if self._update is None and self._names.ordinal_of(label) == self.version:
            return
        update = self._update = self._update or _Update(at_ns, at_ns)
        update.label = str(label)
        self.source = "engine"
        self.version = self._names.applied(label)

    def pass_begins(self) -> bool:
        """A forward pass begins; returns whether it runs in the middle of an update, on weights of two versions."""
        if not self._session_is_open:
            self._close()
            return False
        if self._update is not None:
            self._update.passes_meanwhile += 1
        return True

    def _close(self) -> None:
        """Record the update that has ended, if there was one."""
        update, self._update = self._update, None
        if update is None or not (update.loads or update.label):
            return
        if update.label is None:
            self._unlabelled += 1
            self.source = "time_join"
            self.version = self._names.applied(f"update {self._unlabelled} without a label")
        self.run.apply_weights(
            self.version,
            label=update.label,
            paused=not update.passes_meanwhile,
            kv="recomputed" if update.kv_recomputed and update.loads else "kept",
        ).between(update.start_ns, update.end_ns)
