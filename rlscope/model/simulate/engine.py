"""One engine: a batch that advances one token per pass, and skips over the passes in which nothing changes.

Between two changes of the batch every pass costs pass_s(b) + kappa K, and K grows by b per pass, so n passes take n (c
+ h (n - 1)) seconds with c = pass_s(b) + kappa K and h = kappa b / 2: the sum of an arithmetic series. Requests finish
in the order of the passes in which their last tokens fall due, known when they are admitted.

A request may leave for its environment between two tokens. It returns to its engine, ahead of the requests that wait
there, and its KV is recomputed only if an update voided it.

Admission is first come, first served, between passes, while the batch has a place and the cache holds the request and
the tokens of the next pass. If the cache is full, the request admitted last is preempted, waits first in line, and its
tokens are recomputed at the prefill rate. Prefill, recomputation and weight updates stop the decoding of the batch. Not
covered: chunked prefill beside decoding, and prompts cached between members of a group.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from rlscope.model.simulate.samples import NEVER, SamplePiece, Samples

_SAMPLE_BITS: Final = 32
"""Bits below the finishing pass in one integer with it: comparing integers is faster than comparing pairs."""
_SAMPLE_MASK: Final = (1 << _SAMPLE_BITS) - 1


@dataclass(frozen=True, slots=True)
class EngineTerms:
    """Quantities that determine an engine's times, including a straggler's factor."""

    empty_pass_s: tuple[float, ...]
    """Seconds of a pass by the number of running requests, 0 .. max_running, all without KV."""
    kv_s_per_token: float
    max_running: int
    kv_capacity_tokens: float
    """Infinite without a limit."""
    prompt_tokens: float
    prefill_s_per_token: float
    """0 if prefill is free."""
    prefill_pass_s: float
    """Seconds of prompts that join together, or of KV that is recomputed after an update, excluding their tokens."""
    pause_s: float
    """Seconds of a weight update."""
    kv_kept: bool
    away_place_held: bool = True
    """Whether requests that wait for their environment count among the running ones."""
    away_kv_held: bool = False
    """Whether requests that wait for their environment keep their KV in the cache."""
    away_kv_voided: bool = False
    """Whether an update voids that KV, wherever it is."""


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Sums since the start: seconds by activity, and counts."""

    decode_s: float
    prefill_s: float
    recompute_s: float
    pause_s: float
    running_s: float
    """Requests in the batch, integrated over time."""
    passes: int
    tokens: int
    preemptions: int


_Lead = tuple[float, float, float]
"""Seconds before the passes, in this order: pause, recomputation, prefill."""
_NO_LEAD: _Lead = (0.0, 0.0, 0.0)


class SimulatedEngine:
    """State from one boundary to the next; a boundary is a moment between passes."""

    def __init__(self, index: int, terms: EngineTerms, samples: Samples) -> None:
        self.index, self._terms, self._samples = index, terms, samples
        self._is_limited = terms.kv_capacity_tokens < math.inf
        self._prefills = bool(terms.prefill_s_per_token or terms.prefill_pass_s)
        self.waiting: deque[int] = deque()
        self.running, self.passes, self._resident_tokens = 0, 0, 0.0
        self.most_running = terms.max_running
        self.version, self.new_version = 0, NEVER
        self.switches: list[tuple[int, int]] = [(0, 0)]
        """(passes done, version) at each change of weights."""
        self._due: list[int] = []
        """Heap of running requests: finishing pass and sample."""
        self._order: list[int] = []
        """Running requests, and some finished ones, by admission; kept only if the cache is limited."""
        self._pauses = samples.has_pauses
        self.paused: list[int] = []
        """Samples that left for their environment at the last boundary."""
        self.back: deque[int] = deque()
        """Samples that are back from there and not yet running again."""
        self._away: dict[int, int] = {}
        """Samples that are there or back, with the number of weight changes before they left."""
        self._away_tokens = 0.0
        """Resident tokens of these samples."""
        self._decode_from_s = 0.0
        self._lead = self._next_lead = _NO_LEAD
        self._scheduled, self._pass_s, self._bend_s = 0, 0.0, 0.0
        self._decode_s = self._prefill_s = self._recompute_s = self._pause_s = 0.0
        self._preemptions = 0
        self._booked_running = self._booked_passes = self._tokens = 0
        self._booked_to_s = self._running_s = 0.0

    def boundary_s(self) -> float:
        """Time at which the scheduled passes are done; for an idle engine, a time in the past."""
        return self._decode_from_s + self._passes_s(self._scheduled)

    def cut_short(self, now_s: float) -> None:
        """Make the first boundary at or after `now_s` the next one."""
        if self._scheduled:
            self._scheduled = min(self._passes_until(now_s - self._decode_from_s), self._scheduled)

    def settle(self, now_s: float) -> Sequence[int]:
        """Book the scheduled passes as done, at their boundary; returns the samples that they finished."""
        scheduled, running, resident_tokens = self._scheduled, self.running, self._resident_tokens
        self.paused = []
        if not scheduled:
            return ()
        self._scheduled = 0
        self.passes = passes = self.passes + scheduled
        self._decode_s += now_s - self._decode_from_s
        resident_tokens += scheduled * running
        due, samples, after = self._due, self._samples, (passes + 1) << _SAMPLE_BITS
        prompt_tokens, length_tokens, finished_s = self._terms.prompt_tokens, samples.length_tokens, samples.finished_s
        finished: list[int] = []
        while due and due[0] < after:
            sample = heappop(due) & _SAMPLE_MASK
            if self._pauses and samples.after_tokens[sample]:
                resident_tokens -= self._pause(sample)
                continue
            finished.append(sample)
            finished_s[sample] = now_s
            resident_tokens -= prompt_tokens + length_tokens[sample]
        self._resident_tokens = resident_tokens
        self.running = running - len(finished) - len(self.paused)
        return finished

    def _pause(self, sample: int) -> float:
        """Let a sample leave for its environment; returns the tokens that leave the cache with it."""
        samples = self._samples
        after = samples.after_tokens[sample]
        samples.pieces.append(SamplePiece(sample, samples.start_pass[sample], samples.left_tokens[sample] - after))
        samples.left_tokens[sample], samples.start_pass[sample], samples.after_tokens[sample] = after, NEVER, 0
        self._away[sample] = len(self.switches)
        self.paused.append(sample)
        context_tokens = self._terms.prompt_tokens + samples.length_tokens[sample] - after
        if not self._terms.away_kv_held:
            return context_tokens
        self._away_tokens += context_tokens
        return 0.0

    def _rejoin(self) -> None:
        """Resume samples that are back from their environment; KV that an update voided meanwhile is recomputed."""
        terms, samples, again_tokens = self._terms, self._samples, 0.0
        while self.back and self.running < self.most_running:
            sample = self.back.popleft()
            left = samples.left_tokens[sample]
            context_tokens = terms.prompt_tokens + samples.length_tokens[sample] - left
            if terms.away_kv_held:
                self._away_tokens -= context_tokens
            else:
                self._resident_tokens += context_tokens
            if self._away.pop(sample) != len(self.switches) and terms.away_kv_voided:
                again_tokens += context_tokens
            heappush(self._due, (self.passes + left) << _SAMPLE_BITS | sample)
            samples.start_pass[sample] = self.passes
            self._order.append(sample)
            self.running += 1
        if again_tokens:
            self._spend(0.0, again_tokens * terms.prefill_s_per_token, 0.0)

    def take_weights(self) -> None:
        """Load the waiting version, at a boundary."""
        terms = self._terms
        self.version, self.new_version = self.new_version, NEVER
        self.switches.append((self.passes, self.version))
        lost_tokens = 0.0 if terms.kv_kept else self._resident_tokens - self._away_tokens
        recompute_s = lost_tokens * terms.prefill_s_per_token + (terms.prefill_pass_s if lost_tokens else 0.0)
        self._spend(terms.pause_s, recompute_s, 0.0)

    def resume(self, now_s: float) -> float:
        """Admit waiting requests at a boundary and continue; returns the time of the next one, infinity if idle."""
        terms = self._terms
        if self.back:
            self._rejoin()
        if self._is_limited and self._resident_tokens + self.running > terms.kv_capacity_tokens:
            self._preempt()
        if self.waiting:
            self._admit(now_s)
        running, lead, resident_tokens = self.running, self._next_lead, self._resident_tokens
        if running != self._booked_running:
            self._book(now_s)
        self._lead, self._next_lead = lead, _NO_LEAD
        start_s = now_s if lead is _NO_LEAD else now_s + (lead[0] + lead[1] + lead[2])
        self._decode_from_s = start_s
        if not running:
            return start_s if start_s > now_s else math.inf
        self._pass_s = pass_s = terms.empty_pass_s[running] + terms.kv_s_per_token * resident_tokens
        self._bend_s = bend_s = terms.kv_s_per_token * running / 2
        scheduled = (self._due[0] >> _SAMPLE_BITS) - self.passes
        if self._is_limited:
            scheduled = min(scheduled, max(int((terms.kv_capacity_tokens - resident_tokens) // running), 1))
        self._scheduled = scheduled
        return start_s + scheduled * (pass_s + bend_s * (scheduled - 1))

    def totals_at(self, now_s: float) -> EngineTotals:
        """Totals at a time up to the next boundary; they include the seconds of the current pass, not its tokens."""
        since_s, done = max(now_s - self._decode_from_s, 0.0), 0
        if self._scheduled:
            done = min(self._passes_until(since_s), self._scheduled)
            done -= self._passes_s(done) > since_s
        early_s = max(self._decode_from_s - now_s, 0.0)
        prefill_s = min(early_s, self._lead[2])
        recompute_s = min(early_s - prefill_s, self._lead[1])
        return EngineTotals(
            decode_s=self._decode_s + (since_s if self.running else 0.0),
            prefill_s=self._prefill_s - prefill_s,
            recompute_s=self._recompute_s - recompute_s,
            pause_s=self._pause_s - (early_s - prefill_s - recompute_s),
            running_s=self._running_s + self._booked_running * (now_s - self._booked_to_s),
            passes=self.passes + done,
            tokens=self._tokens + self._booked_running * (self.passes + done - self._booked_passes),
            preemptions=self._preemptions,
        )

    def _book(self, now_s: float) -> None:
        """Add up the passes of the batch before its size changes."""
        self._running_s += self._booked_running * (now_s - self._booked_to_s)
        self._tokens += self._booked_running * (self.passes - self._booked_passes)
        self._booked_running, self._booked_to_s, self._booked_passes = self.running, now_s, self.passes

    def _admit(self, now_s: float) -> None:
        """Let waiting requests join while the batch and the cache have room for them."""
        terms, samples, passes, version = self._terms, self._samples, self.passes, self.version
        is_limited = self._is_limited
        waiting, running, resident_tokens = self.waiting, self.running, self._resident_tokens
        left_tokens, length_tokens, first_version = samples.left_tokens, samples.length_tokens, samples.first_version
        after_tokens = samples.after_tokens
        prompt_tokens, capacity_tokens, most_running = terms.prompt_tokens, terms.kv_capacity_tokens, self.most_running
        new_tokens = again_tokens = 0.0
        while waiting and running < most_running:
            sample = waiting[0]
            left = left_tokens[sample]
            context_tokens = prompt_tokens + (length_tokens[sample] - left)
            if resident_tokens + context_tokens + running + 1 > capacity_tokens:
                break
            waiting.popleft()
            running += 1
            resident_tokens += context_tokens
            runs = left - after_tokens[sample] if after_tokens else left
            heappush(self._due, (passes + runs) << _SAMPLE_BITS | sample)
            samples.start_pass[sample] = passes
            if first_version[sample] == NEVER:
                first_version[sample] = version
                samples.engine[sample], samples.admitted_s[sample] = self.index, now_s
                new_tokens += context_tokens
            else:
                again_tokens += context_tokens
            if is_limited:
                self._order.append(sample)
        self.running, self._resident_tokens = running, resident_tokens
        if (again_tokens or new_tokens) and self._prefills:
            again_s, new_s = again_tokens * terms.prefill_s_per_token, new_tokens * terms.prefill_s_per_token
            self._spend(0.0, again_s, new_s + terms.prefill_pass_s)

    def _spend(self, pause_s: float, recompute_s: float, prefill_s: float) -> None:
        lead = self._next_lead
        self._next_lead = (lead[0] + pause_s, lead[1] + recompute_s, lead[2] + prefill_s)
        self._pause_s += pause_s
        self._recompute_s += recompute_s
        self._prefill_s += prefill_s

    def _preempt(self) -> None:
        """Preempt requests, the last admitted first, until the next pass fits."""
        samples, passes = self._samples, self.passes
        while self.running and self._resident_tokens + self.running > self._terms.kv_capacity_tokens:
            sample = self._order.pop()
            if samples.finished_s[sample] != NEVER or samples.start_pass[sample] == NEVER:
                continue
            start_pass, left = samples.start_pass[sample], samples.left_tokens[sample]
            after = samples.after_tokens[sample] if self._pauses else 0
            self._due.remove((start_pass + left - after) << _SAMPLE_BITS | sample)
            samples.pieces.append(SamplePiece(sample, start_pass, passes - start_pass))
            left -= passes - start_pass
            samples.left_tokens[sample], samples.start_pass[sample] = left, NEVER
            self._resident_tokens -= self._terms.prompt_tokens + samples.length_tokens[sample] - left
            self.running -= 1
            self.waiting.appendleft(sample)
            self._preemptions += 1
        heapify(self._due)

    def _passes_s(self, passes: int) -> float:
        return passes * (self._pass_s + self._bend_s * (passes - 1))

    def _passes_until(self, span_s: float) -> int:
        """Fewest passes that take at least `span_s`: the root of the quadratic, corrected for rounding."""
        if span_s <= 0.0:
            return 0
        bend_s, slope_s = self._bend_s, self._pass_s - self._bend_s
        # This form of the root stays exact if the bend is small or 0.
        passes = math.ceil(2.0 * span_s / (slope_s + math.sqrt(slope_s * slope_s + 4.0 * bend_s * span_s)))
        while passes > 0 and self._passes_s(passes - 1) >= span_s:
            passes -= 1
        while self._passes_s(passes) < span_s:
            passes += 1
        return passes
