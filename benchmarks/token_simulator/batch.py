"""The requests of one engine: running, waiting for a place, or away at their environment; slots, KV and preemption.

A request that joins after pass p with n tokens to go leaves after pass p + n, so the batch keeps a calendar of passes
and touches only those that leave.
"""

from collections import defaultdict, deque

from .requests import Request


class Batch:
    """Every decode pass gives each running request one token."""

    def __init__(self, slots: int, kv_capacity_tokens: int | None) -> None:
        self._slots, self._kv_capacity_tokens = slots, kv_capacity_tokens
        self.running: dict[Request, None] = {}
        """In the order in which they joined: the last is the first to be preempted."""
        self.waiting: deque[Request] = deque()
        self.away: dict[Request, None] = {}
        """Outside the engine; they keep their slot and their KV."""
        self._back: list[Request] = []
        """Of those away: returned, and not yet running again."""
        self._calendar: defaultdict[int, list[Request]] = defaultdict(list)
        self.passes = 0
        self.kv_tokens = 0
        """Of what runs."""
        self._away_kv_tokens = 0

    @property
    def free_slots(self) -> int:
        """Requests that may still join, should the KV reach."""
        return self._slots - len(self.running) - len(self.away)

    @property
    def is_full_and_goes_on(self) -> bool:
        """Whether every slot runs and nothing can overflow, so that there is nothing to decide before the next pass."""
        return len(self.running) == self._slots and self._kv_capacity_tokens is None

    @property
    def resident_tokens(self) -> int:
        """Tokens in the KV cache."""
        return self.kv_tokens + self._away_kv_tokens

    def join(self) -> list[Request]:
        """Start those that wait, first come, first served, as far as slots and KV reach; they need a prefill."""
        joining: list[Request] = []
        while self.waiting and self.free_slots > 0 and self._fits(self.waiting[0].held_tokens + 1):
            joining.append(self.waiting.popleft())
            self._start(joining[-1])
        return joining

    def rejoin(self) -> None:
        """Start those that are back from their environment; their KV is still there."""
        for request in self._back:
            del self.away[request]
            self._away_kv_tokens -= request.held_tokens
            self._start(request)
        self._back.clear()

    def note_back(self, request: Request) -> None:
        """The request's environment has answered."""
        self._back.append(request)

    def preempt_overflow(self) -> int:
        """Put the latest requests back until a pass fits: their KV is lost, their tokens are not. Returns how many."""
        preempted = 0
        while self.running and not self._fits(0):
            request = next(reversed(self.running))
            self._calendar[self._leaves_after(request)].remove(request)
            self._stop(request)
            request.preemptions += 1
            self.waiting.appendleft(request)
            preempted += 1
        return preempted

    def complete_pass(self) -> list[Request]:
        """Every running request has one token more; returns those that leave, finished or sent away."""
        self.passes += 1
        self.kv_tokens += len(self.running)
        leaving = self._calendar.pop(self.passes, [])
        for request in leaving:
            self._stop(request)
            if request.pause_after_tokens is not None:
                request.pause_after_tokens = None
                self.away[request] = None
                self._away_kv_tokens += request.held_tokens
        return leaving

    def cut_short(self) -> list[Request]:
        """Stop everything where it is: the requests that are not finished."""
        for request in list(self.running):
            self._stop(request)
            self.away[request] = None
        return [*self.away, *self.waiting]

    def _start(self, request: Request) -> None:
        request.joined_pass = self.passes
        self.running[request] = None
        self.kv_tokens += request.held_tokens
        self._calendar[self._leaves_after(request)].append(request)

    def _stop(self, request: Request) -> None:
        del self.running[request]
        if self.passes > request.joined_pass:
            request.stints.append((request.joined_pass, self.passes))
        request.generated_tokens += self.passes - request.joined_pass
        self.kv_tokens -= request.held_tokens

    def _leaves_after(self, request: Request) -> int:
        """The pass after which a running request leaves, should nothing preempt it."""
        pause = request.pause_after_tokens
        to_go = (request.length_tokens if pause is None else pause) - request.generated_tokens
        return request.joined_pass + to_go

    def _fits(self, more_tokens: int) -> bool:
        """Whether so many more tokens fit besides those resident and those of the next pass."""
        needed = self.resident_tokens + len(self.running) + more_tokens
        return self._kv_capacity_tokens is None or needed <= self._kv_capacity_tokens
