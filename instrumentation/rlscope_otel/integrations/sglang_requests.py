"""The requests of one SGLang scheduler: which tokens of each were sampled under which version.

Tokens are counted when the scheduler processes a pass's result, under the label at that moment. SGLang labels them in
the same way, so a row holds the ranges of `meta_info["weight_versions"]`, also in versions of SGLang that have only the
scalar `weight_version`.
"""

from typing import Any, Final

from rlscope_otel.integrations.request_ids import name_of
from rlscope_otel.integrations.sglang_weights import Weights
from rlscope_otel.recorder import Run
from rlscope_otel.samples import Sample

_REASONS: Final = ("stop", "length", "abort")
_HEALTH_CHECK: Final = "HEALTH_CHECK"
# Requests that are aborted while they wait are never scheduled; their times are forgotten, oldest first.
_MOST_WAITING: Final = 100_000


class _Request:
    """A request that has been scheduled; without a sample its tokens are counted for the pass alone."""

    __slots__ = ("counted", "sample")

    def __init__(self, sample: Sample | None) -> None:
        self.sample = sample
        self.counted = 0


class Requests:
    """All requests of one scheduler that have not ended."""

    def __init__(self, run: Run, weights: Weights, *, are_recorded: bool) -> None:
        self._run, self._weights, self._are_recorded = run, weights, are_recorded
        self._submitted_ns: dict[str, int] = {}
        self._running: dict[str, _Request] = {}

    def queued(self, req: Any, at_ns: int) -> None:
        """A request joined the waiting queue; the first time counts, a retracted one comes again."""
        if req.rid not in self._running and len(self._submitted_ns) < _MOST_WAITING:
            self._submitted_ns.setdefault(req.rid, at_ns)

    def scheduled(self, req: Any, at_ns: int) -> None:
        """A request is in the batch of a pass."""
        if req.rid in self._running:
            return
        submitted_ns = self._submitted_ns.pop(req.rid, None)
        wanted = self._are_recorded and not str(req.rid).startswith(_HEALTH_CHECK)
        self._running[req.rid] = _Request(self._sample(req, submitted_ns, at_ns) if wanted else None)

    def taken_in(self, req: Any, *, is_torn: bool) -> int:
        """The scheduler took in what a pass made for a request: how many tokens more that were."""
        request = self._running.get(req.rid)
        if request is None:
            return 0
        tokens = max(0, _output_tokens(req) - request.counted)
        request.counted += tokens
        if request.sample is not None and tokens:
            request.sample.tokens(tokens, self._weights.version)
            if is_torn:
                request.sample.torn(tokens)
        if req.finished():
            self.ended(req)
        return tokens

    def ended(self, req: Any) -> None:
        """A request has its last token, or was aborted."""
        request = self._running.pop(req.rid, None)
        self._submitted_ns.pop(req.rid, None)
        if request is not None and request.sample is not None:
            request.sample.finish(
                _reason_of(req),
                preemptions=getattr(req, "retraction_count", None),
                cached_tokens=getattr(req, "cached_tokens", None),
            )

    def _sample(self, req: Any, submitted_ns: int | None, at_ns: int) -> Sample:
        name = name_of(str(req.rid))
        sample = self._run.sample(
            name.sample_id,
            name.group_id,
            name.segment,
            prompt_tokens=len(req.origin_input_ids),
            submitted_ns=submitted_ns,
            version_source=self._weights.source,
        )
        sample.started(at_ns)
        return sample


def _output_tokens(req: Any) -> int:
    """Tokens up to the stop, where SGLang knows more were sampled in the pass that reached it."""
    stopped_at = getattr(req, "finished_len", None)
    return len(req.output_ids) if stopped_at is None else int(stopped_at)


def _reason_of(req: Any) -> str | None:
    finished_reason = getattr(req, "finished_reason", None)
    if finished_reason is None:
        return "abort"
    reason = finished_reason.to_json().get("type")
    return reason if reason in _REASONS else None
