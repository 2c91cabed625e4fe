"""The weights of one engine: which version samples, and when each version was loaded.

An engine loads weights in one call, or in several between a beginning and an end. The label that it gives to its
weights is the version of the tokens that it samples. Updates without a label are counted, and the version source is
`time_join`. An update is `paused` if no forward pass ran from its start to its end. Tokens of passes that did run are
torn; so are, in an engine that labels its weights after an update, those sampled between its end and its label.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from rlscope_otel.integrations.versions import VersionNames
from rlscope_otel.recorder import Run


@dataclass(slots=True)
class _Update:
    """New weights on their way into the engine."""

    start_ns: int
    end_ns: int
    is_open: bool
    is_of_draft: bool = False
    kv_recomputed: bool = False
    label: str | None = None
    passes_meanwhile: int = 0
    calls_ns: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When the engine loaded, and sampled nothing."""


class Weights:
    """Follows the calls that change an engine's weights, in their order. Not for use by several threads at once."""

    def __init__(self, run: Run, label: object = None, source: str = "engine", *, label_follows: bool = False) -> None:
        """Begin with the label that the engine has.

        source: of the versions of the tokens that are sampled now. label_follows: the engine labels weights only after
        an update, with passes in between, and its calls are recorded one by one if passes ran between them.
        """
        self._run = run
        self._names = VersionNames()
        self.version = self._names.applied(label)
        """The version that samples now."""
        self.source = source
        self.updates_begun = 0
        self._label_follows = label_follows
        self._has_labels = label_follows and bool(self.version)
        self._update: _Update | None = None
        self._kv_was_reset = False
        self.is_changing = False
        """Whether the next pass has to be told of, by `pass_begins`."""
        self._unlabeled = 0
        self._before_change: Callable[[], None] = lambda: None
        self.pause = Pause(run)

    def before_change(self, action: Callable[[], None]) -> None:
        """Set the function to call before the version changes."""
        self._before_change = action

    @property
    def is_complete(self) -> bool:
        """Whether there is an update that has ended and has its label: what is loaded now is another one."""
        return self._update is not None and not self._update.is_open and self._update.label is not None

    def begin(self, start_ns: int, *, is_open: bool = True, is_of_draft: bool = False) -> None:
        """An update begins; an open one lasts until `end`.

        is_of_draft: of a model that proposes tokens and samples none: its weights are no policy version.
        """
        self.close()
        self._update = _Update(start_ns, start_ns, is_open, is_of_draft, self._kv_was_reset)
        self.is_changing = True
        self.updates_begun += 1

    def loaded(self, start_ns: int, end_ns: int, *, kv_recomputed: bool | None = None) -> None:
        """One call put weights into the model, as part of the update that was begun, or as one of its own.

        kv_recomputed: whether no key or value of older weights is left; None if the engine says so by `kv_reset`.
        """
        update = self._current(start_ns)
        # A load with a label may set the label before it returns.
        update.start_ns, update.end_ns = min(update.start_ns, start_ns), end_ns
        update.calls_ns.append((start_ns, end_ns))
        if kv_recomputed is not None:
            update.kv_recomputed = kv_recomputed

    def end(self, at_ns: int) -> None:
        """The update that was begun has ended. Without a label yet it may get one before the next pass."""
        if self._update is not None:
            self._update.is_open, self._update.end_ns = False, at_ns

    def failed(self) -> None:
        """A call failed: nobody knows what the weights are now, and there is no version to record."""
        self._update = None

    def labeled(self, label: object, at_ns: int) -> None:
        """The engine got a new label for its weights; while a load runs, before it has returned."""
        if self._update is None and self._names.ordinal_of(label) == self.version:
            return
        self._current(at_ns).label = str(label)
        self._has_labels = self._label_follows
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
        if update is not None and (
            update.is_open or (self._has_labels and update.label is None and not update.is_of_draft)
        ):
            update.passes_meanwhile += 1
            return not update.is_of_draft
        self.close()
        self.pause.settle()
        self.is_changing = False
        return False

    def close(self) -> None:
        """Record an update that has ended; one that has no label yet gets the next version."""
        update, self._update = self._update, None
        if update is None or update.is_open or not (update.calls_ns or update.label):
            return
        if not update.is_of_draft:
            self._record(update)
        if self._label_follows and (update.is_of_draft or update.passes_meanwhile):
            # The engine generates between the calls of an update, and is idle during each.
            for start_ns, end_ns in update.calls_ns:
                self._run.activity("weight_update").between(start_ns, end_ns)

    def _record(self, update: _Update) -> None:
        if update.label is None:
            self._unlabeled += 1
            self._change_to(self._names.applied(f"update {self._unlabeled} without a label"), "time_join")
        self._run.apply_weights(
            self.version,
            update.label,
            paused=not update.passes_meanwhile,
            kv="recomputed" if update.kv_recomputed else "kept",
        ).between(update.start_ns, update.end_ns)
        self.pause.updated(self.version, update.start_ns, update.end_ns)

    def _current(self, at_ns: int) -> _Update:
        """Return the update under way, else one that begins and ends now."""
        if self._update is None:
            self.begin(at_ns, is_open=False)
            assert self._update is not None
        return self._update

    def _change_to(self, version: int, source: str) -> None:
        if version != self.version or source != self.source:
            self._before_change()
        self.version = version
        self.source = source


class Pause:
    """The last pause of one engine for a weight update: what passes before the first weights, and after the last.

    The drain lasts from the pause to the first weights, whoever was waited for: requests that end, or the trainer.
    Weights are in place long before generation goes on where caches are built again; that is the resumption.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since_ns: int | None = None
        self._until_ns: int | None = None
        self._update: tuple[int, int, int] | None = None
        """Version of the last update, start of the first and end of the last."""

    @property
    def has_update(self) -> bool:
        """Whether weights were loaded in the pause."""
        return self._update is not None

    def began(self, at_ns: int) -> None:
        """Generation is paused; a pause within a pause is the same one."""
        if self._since_ns is None or self._until_ns is not None:
            self._since_ns, self._until_ns, self._update = at_ns, None, None

    def ended(self, at_ns: int) -> int | None:
        """Generation may go on; returns since when it was paused. None if it was not."""
        if self._since_ns is None or self._until_ns is not None:
            return None
        self._until_ns = at_ns
        return self._since_ns

    def updated(self, version: int, start_ns: int, end_ns: int) -> None:
        """Weights were loaded; what was loaded outside of the pause does not count."""
        if self._since_ns is not None and start_ns >= self._since_ns:
            self._update = (version, self._update[1] if self._update else start_ns, end_ns)

    def settle(self) -> None:
        """A pass begins after the pause: record its parts, if there was an update."""
        since_ns, until_ns, update = self._since_ns, self._until_ns, self._update
        if since_ns is None or until_ns is None:
            return
        self._since_ns = self._until_ns = self._update = None
        if update is None or until_ns < update[2]:
            return
        version, start_ns, end_ns = update
        self._run.weight_update_part("drain", version).between(since_ns, start_ns)
        self._run.weight_update_part("resume", version).between(end_ns, until_ns)
