"""One engine: a batch that advances one token a pass, and jumps over the passes in which nothing changes.

Between two changes of the batch every pass costs pass_s(b) + kappa K, and K grows by b a pass, so n passes take
n (c + h (n - 1)) seconds with c = pass_s(b) + kappa K and h = kappa b / 2: the sum of an arithmetic series. Requests
finish in the order of the passes in which their last tokens fall due, known when they are admitted.

Admission is first come first served, between passes, while the batch has a place and the cache holds the request and
the tokens of the next pass. When the cache is full the request admitted last leaves it, waits first in line, and its
tokens are computed again at the prefill rate. Prefill, recomputation and weight updates stop the decoding of the
batch. Not covered: chunked prefill beside decoding, prompts cached between members of a group.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from rlscope.model.simulate.samples import NEVER, Piece, Samples

_SHIFT: Final = 1 << 32
"""Finishing pass and sample stand in one integer: it is compared faster than a pair."""


@dataclass(frozen=True, slots=True)
class EngineTerms:
    """What an engine's times follow from; a straggler's factor is in them."""

    empty_pass_s: tuple[float, ...]
    """Of a pass by the number of running requests, 0 .. max_running, none of which holds KV."""
    kv_s_per_token: float
    max_running: int
    kv_capacity_tokens: float
    """Infinite without a limit."""
    prompt_tokens: float
    prefill_s_per_token: float
    """0 where prefill is free."""
    pause_s: float
    """Of a weight update."""
    kv_kept: bool
    drains: bool
    """Finish what was dispatched before new weights are taken."""


@dataclass(slots=True)
class EngineTotals:
    """Sums since the start: seconds by activity, and counts."""

    decode_s: float = 0.0
    prefill_s: float = 0.0
    recompute_s: float = 0.0
    pause_s: float = 0.0
    running_s: float = 0.0
    """Requests in the batch, integrated over time."""
    passes: int = 0
    tokens: int = 0
    resident_token_passes: float = 0.0
    """Resident tokens, summed over passes."""
    preemptions: int = 0


class _Lead(NamedTuple):
    """Seconds before the passes, spent in this order."""

    pause_s: float = 0.0
    recompute_s: float = 0.0
    prefill_s: float = 0.0


_NO_LEAD: Final = _Lead()


class Engine:
    """State from one boundary to the next; a boundary is a moment between passes."""

    __slots__ = (
        "_ahead",
        "_bend_s",
        "_decode_from_s",
        "_due",
        "_lead",
        "_next_lead",
        "_order",
        "_pass_s",
        "_samples",
        "_since_s",
        "_terms",
        "index",
        "new_version",
        "resident_tokens",
        "running",
        "switches",
        "totals",
        "version",
        "waiting",
    )

    def __init__(self, index: int, terms: EngineTerms, samples: Samples) -> None:
        self.index, self._terms, self._samples = index, terms, samples
        self.waiting: deque[int] = deque()
        self.running, self.resident_tokens = 0, 0.0
        self.version, self.new_version = 0, NEVER
        self.switches: list[tuple[int, int]] = [(0, 0)]
        """(passes done, version) at each change of weights."""
        self.totals = EngineTotals()
        self._due: list[int] = []
        self._order: list[int] = []
        self._since_s = self._decode_from_s = 0.0
        self._lead = self._next_lead = _NO_LEAD
        self._ahead, self._pass_s, self._bend_s = 0, 0.0, 0.0

    def boundary_s(self) -> float:
        """When the passes ahead are done; for an idle engine, a moment that has passed."""
        return self._decode_from_s + self._passes_s(self._ahead)

    def cut_short(self, now_s: float) -> None:
        """Make the first boundary at or after now the next one."""
        if self._ahead:
            self._ahead = min(self._passes_until(now_s - self._decode_from_s), self._ahead)

    def settle(self, now_s: float) -> list[int]:
        """Book the passes ahead as done, at their boundary; returns the samples that they finished."""
        running, totals, ahead = self.running, self.totals, self._ahead
        totals.running_s += running * (now_s - self._since_s)
        self._since_s = now_s
        if not ahead:
            return []
        totals.decode_s += now_s - self._decode_from_s
        totals.resident_token_passes += ahead * (self.resident_tokens + running * (ahead - 1) / 2)
        totals.tokens += ahead * running
        totals.passes += ahead
        self.resident_tokens += ahead * running
        self._ahead = 0
        finished = self._leave_cache(now_s)
        self.running = running - len(finished)
        return finished

    def take_weights(self) -> bool:
        """Load the version that waits, at a boundary, unless requests have to finish first; whether it was loaded."""
        terms, totals = self._terms, self.totals
        if terms.drains and (self.running or self.waiting):
            return False
        self.version, self.new_version = self.new_version, NEVER
        self.switches.append((totals.passes, self.version))
        recompute_s = 0.0 if terms.kv_kept else self.resident_tokens * terms.prefill_s_per_token
        totals.pause_s += terms.pause_s
        totals.recompute_s += recompute_s
        self._next_lead = _Lead(terms.pause_s, recompute_s)
        return True

    def resume(self, now_s: float) -> float:
        """Admit waiting requests at a boundary and go on; returns when the next one is, infinity when idle."""
        terms = self._terms
        if self.resident_tokens + self.running > terms.kv_capacity_tokens:
            self._preempt()
        if self.waiting:
            self._admit(now_s)
        running, lead = self.running, self._next_lead
        self._lead, self._next_lead = lead, _NO_LEAD
        self._since_s = now_s
        self._decode_from_s = now_s if lead is _NO_LEAD else now_s + sum(lead)
        if not running:
            return self._decode_from_s if self._decode_from_s > now_s else math.inf
        self._pass_s = terms.empty_pass_s[running] + terms.kv_s_per_token * self.resident_tokens
        self._bend_s = terms.kv_s_per_token * running / 2
        ahead = self._due[0] // _SHIFT - self.totals.passes
        if terms.kv_capacity_tokens < math.inf:
            ahead = min(ahead, int((terms.kv_capacity_tokens - self.resident_tokens) // running))
        self._ahead = ahead
        return self._decode_from_s + ahead * (self._pass_s + self._bend_s * (ahead - 1))

    def totals_at(self, now_s: float) -> EngineTotals:
        """The totals at a moment up to the next boundary; of the pass under way its seconds, not its tokens."""
        running, since_s, lead = self.running, now_s - self._decode_from_s, self._lead
        totals = replace(self.totals, running_s=self.totals.running_s + running * (now_s - self._since_s))
        if since_s < 0.0:
            prefill_s = min(-since_s, lead.prefill_s)
            recompute_s = min(-since_s - prefill_s, lead.recompute_s)
            totals.prefill_s -= prefill_s
            totals.recompute_s -= recompute_s
            totals.pause_s -= -since_s - prefill_s - recompute_s
        elif running:
            done = self._whole_passes(since_s)
            totals.decode_s += since_s
            totals.passes += done
            totals.tokens += done * running
            totals.resident_token_passes += done * (self.resident_tokens + running * (done - 1) / 2)
        return totals

    def _leave_cache(self, now_s: float) -> list[int]:
        due, samples, prompt_tokens = self._due, self._samples, self._terms.prompt_tokens
        after = (self.totals.passes + 1) * _SHIFT
        finished: list[int] = []
        while due and due[0] < after:
            sample = heappop(due) % _SHIFT
            finished.append(sample)
            samples.finished_s[sample] = now_s
            self.resident_tokens -= prompt_tokens + samples.length_tokens[sample]
        return finished

    def _admit(self, now_s: float) -> None:
        """Let waiting requests join while there is room for them."""
        terms, samples, passes = self._terms, self._samples, self.totals.passes
        new_tokens = again_tokens = 0.0
        while self.waiting and self.running < terms.max_running:
            sample = self.waiting[0]
            left = samples.left_tokens[sample]
            context_tokens = terms.prompt_tokens + samples.length_tokens[sample] - left
            if self.resident_tokens + context_tokens + self.running + 1 > terms.kv_capacity_tokens:
                break
            self.waiting.popleft()
            self.running += 1
            self.resident_tokens += context_tokens
            heappush(self._due, (passes + left) * _SHIFT + sample)
            samples.start_pass[sample] = passes
            if samples.first_version[sample] == NEVER:
                samples.first_version[sample] = self.version
                samples.engine[sample], samples.admitted_s[sample] = self.index, now_s
                new_tokens += context_tokens
            else:
                again_tokens += context_tokens
            if terms.kv_capacity_tokens < math.inf:
                self._order.append(sample)
        if terms.prefill_s_per_token:
            self._prefill(new_tokens * terms.prefill_s_per_token, again_tokens * terms.prefill_s_per_token)

    def _prefill(self, new_s: float, again_s: float) -> None:
        lead = self._next_lead
        self._next_lead = _Lead(lead.pause_s, lead.recompute_s + again_s, new_s)
        self.totals.prefill_s += new_s
        self.totals.recompute_s += again_s

    def _preempt(self) -> None:
        """Take requests out, the last admitted first, until the next pass fits."""
        samples, passes = self._samples, self.totals.passes
        while self.resident_tokens + self.running > self._terms.kv_capacity_tokens:
            sample = self._order.pop()
            if samples.finished_s[sample] != NEVER:
                continue
            start_pass, left = samples.start_pass[sample], samples.left_tokens[sample]
            self._due.remove((start_pass + left) * _SHIFT + sample)
            samples.pieces.append(Piece(sample, start_pass, passes - start_pass))
            left -= passes - start_pass
            samples.left_tokens[sample], samples.start_pass[sample] = left, NEVER
            self.resident_tokens -= self._terms.prompt_tokens + samples.length_tokens[sample] - left
            self.running -= 1
            self.waiting.appendleft(sample)
            self.totals.preemptions += 1
        heapify(self._due)

    def _passes_s(self, passes: int) -> float:
        return passes * (self._pass_s + self._bend_s * (passes - 1))

    def _passes_until(self, span_s: float) -> int:
        """The fewest passes that take so long: the root of the quadratic, mended for rounding."""
        if span_s <= 0.0:
            return 0
        bend_s, slope_s = self._bend_s, self._pass_s - self._bend_s
        # The form of the root that stays exact where the bend is small, or 0.
        passes = math.ceil(2.0 * span_s / (slope_s + math.sqrt(slope_s * slope_s + 4.0 * bend_s * span_s)))
        while passes > 0 and self._passes_s(passes - 1) >= span_s:
            passes -= 1
        while self._passes_s(passes) < span_s:
            passes += 1
        return passes

    def _whole_passes(self, span_s: float) -> int:
        """Passes of those ahead that are done so many seconds after the first began."""
        passes = min(self._passes_until(span_s), self._ahead)
        return passes - 1 if self._passes_s(passes) > span_s else passes
