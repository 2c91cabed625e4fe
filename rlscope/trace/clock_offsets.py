"""Estimate the clocks of several hosts from the order of causes and effects, in windows of time.

No effect precedes its cause, so each pair bounds the difference of two clocks from one side. Within a window, shortest
paths from the reference give the tightest bounds that all pairs imply for each clock (Cormen, Leiserson, Rivest, Stein,
Introduction to Algorithms, section "Difference constraints and shortest paths"). A straight line through the bounds of
all windows is the clock, and its slope is its drift (Duda, Harrus, Haddad and Bernard, Estimating global time in
distributed systems, ICDCS 1987). With the slopes removed, the pairs of the whole run bound the offset of each clock at
once.

A window that the line does not fit has a bad row. If no clocks satisfy all pairs, the bounds are relaxed until some do.
A recorder reads the wall clock once, at its start, so no clock is set in the middle of a recording.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals

MOST_DRIFT_RATIO: Final = 5e-4
"""Maximum drift of a clock from another: a time daemon slews by up to 500 ppm, quartz stays within 100."""
_WINDOWS: Final = 64
_PASSES: Final = 3
"""The drift within a window is known only from the pass before."""
_NS_PER_S: Final = 1e9
_SURE: Final = 2.0
"""Uncertainties that a clock must be off by before it is moved: the correction then errs by less than the clock did."""
_ROUNDING_S: Final = 1e-9
"""Times are whole nanoseconds, and sums of floats differ by less: closer bounds touch each other."""


class Pairs(NamedTuple):
    """Causes and their effects on other hosts; arrays of one length."""

    cause: Counts
    """Index of the host whose clock timed the cause."""
    effect: Counts
    cause_ns: Counts
    effect_ns: Counts

    def only(self, kept: Flags) -> "Pairs":
        """Return the pairs that are kept."""
        return Pairs(*(column[kept] for column in self))


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock of one host, compared with the reference clock."""

    host: str
    against: str
    offset_ns: int
    """Nanoseconds that the clock is ahead of the reference at origin_ns; 0 if no difference was found."""
    drift_ratio: float
    """Seconds gained per second."""
    origin_ns: int
    """Time by that clock."""
    uncertainty_ns: int | None
    """Maximum error of the corrected times; None if it is unbounded."""
    least_ns: int | None
    """Lower bound of a constant offset; None if nothing bounds it from below, or no constant fits."""
    most_ns: int | None
    is_off: bool
    """Whether the recorded times contradict the order of causes."""
    is_corrected: bool
    """Whether the clock is corrected: it is bounded, and off by more than the error of the correction."""

    def ahead_ns(self, times_ns: Counts) -> Counts:
        """Return how far the clock is ahead of the reference, in ns, at times by itself."""
        return self.offset_ns + np.round(self.drift_ratio * (times_ns - self.origin_ns)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of the hosts."""

    hosts: tuple[HostClock, ...] = ()
    contradiction_ns: int = 0
    """Minimum time that effects precede their causes under any clock correction; 0 if the pairs are consistent."""

    @property
    def corrected(self) -> frozenset[str]:
        """Hosts whose times are corrected."""
        return frozenset(each.host for each in self.hosts if each.is_corrected)


@dataclass(frozen=True, slots=True)
class _Edges:
    """Bounds: node `effect` is ahead of node `cause` by at most gap_s. Times in seconds on a common axis."""

    cause: Counts
    effect: Counts
    time_s: Reals
    gap_s: Reals
    count: int
    """Number of nodes."""

    def only(self, kept: Flags | Counts) -> "_Edges":
        """Return the edges that are kept."""
        return _Edges(self.cause[kept], self.effect[kept], self.time_s[kept], self.gap_s[kept], self.count)

    def at(self, at_s: Reals | float, drift: Reals, drift_error: Reals | None = None) -> "_Edges":
        """Return the bounds at another time, given how fast each node gains time and by how much that may be wrong."""
        since_s = self.time_s - at_s
        drifted_s = (drift[self.effect] - drift[self.cause]) * since_s
        both = 0.0 if drift_error is None else drift_error[self.effect] + drift_error[self.cause]
        error_s = both * np.abs(since_s)
        return replace(self, gap_s=self.gap_s - drifted_s + error_s)

    def relaxed(self, by_s: float) -> "_Edges":
        """Return the bounds, each wider by by_s."""
        return replace(self, gap_s=self.gap_s + by_s)

    def held(self, nodes: Sequence[int], at_s: Reals, reference: int) -> "_Edges":
        """Add bounds that hold these nodes at their offsets at_s from the reference."""
        own, source = np.array(nodes, np.int64), np.full(len(nodes), reference)
        return replace(
            self,
            cause=np.concatenate((self.cause, source, own)),
            effect=np.concatenate((self.effect, own, source)),
            gap_s=np.concatenate((self.gap_s, at_s[own], -at_s[own])),
        )

    def tightest(self) -> "_Edges":
        """Return the tightest bound from each node to each other."""
        keys = self.cause * self.count + self.effect
        order = np.lexsort((self.gap_s, keys))
        return self.only(order[np.diff(keys[order], prepend=-1) > 0])

    def distances(self, sources: Counts | None, rounds: int) -> tuple[Reals, Flags]:
        """Return the shortest distances from the sources, or from anywhere, and whether each is settled.

        Bellman and Ford's relaxation. Sources stay at 0, so a contradiction unsettles only the nodes that are part of
        it, and those behind them.
        """
        distance = np.full(self.count, 0.0 if sources is None else np.inf)
        fixed = np.array([], np.int64) if sources is None else sources
        distance[fixed] = 0.0
        is_settled = np.zeros(self.count, bool)
        for _ in range(rounds):
            before = distance.copy()
            np.minimum.at(distance, self.effect, before[self.cause] + self.gap_s)
            distance[fixed] = 0.0
            is_settled = distance >= before - _ROUNDING_S
            if is_settled.all():
                return distance, is_settled
        return distance, is_settled

    def is_consistent(self) -> bool:
        """Return whether some offsets satisfy every bound."""
        return bool(self.distances(None, self.count + 1)[1].all())

    def bounds(self, sources: Counts, rounds: int) -> "_Bounds":
        """Return the bounds that all edges imply together; none for nodes whose bounds contradict each other."""
        back = replace(self, cause=self.effect, effect=self.cause)
        (high_s, is_high), (low_s, is_low) = (each.distances(sources, rounds) for each in (self, back))
        is_sound = is_high & is_low & (-low_s <= high_s + _ROUNDING_S)
        return _Bounds(np.where(is_sound, -low_s, -np.inf), np.where(is_sound, high_s, np.inf))


class _Bounds(NamedTuple):
    """Bounds on how far each node is ahead of the reference, in seconds; infinite if unbounded."""

    low_s: Reals
    high_s: Reals


class _Line(NamedTuple):
    """A straight line through the bounds of one clock in some windows."""

    windows: Counts
    """The windows that it fits."""
    least_ratio: float
    """Smallest slope of such a line."""
    most_ratio: float


class _Level(NamedTuple):
    """The drift of each clock, and the bounds between the clocks."""

    drift: Reals
    """Seconds gained per second: 0 if a constant fits and contradicts no other clock."""
    middle_drift: Reals
    drift_error: Reals
    """Maximum error of the middle drift."""
    edges: _Edges


class _Fit(NamedTuple):
    """The offset of each clock at the origin of the axis, with its bounds and uncertainty."""

    free: _Bounds
    """Bounds while no clock is held at its recorded times."""
    offset_s: Reals
    drift: Reals
    is_off: Flags
    is_moved: Flags
    uncertainty_s: Reals
    missing_s: float
    """Seconds that every bound had to be relaxed by; 0 if the bounds are consistent."""


def estimate_clocks(pairs: Pairs, names: Sequence[str], reference: int) -> Clocks:
    """Estimate the clocks of the hosts, in the order of their names, from all pairs at once.

    The reference keeps the offset 0. A clock that no path of pairs connects to it has no bounds.
    """
    rough_ns, hops = _rough_offsets(pairs, len(names), reference)
    axis_ns = int((pairs.cause_ns - rough_ns[pairs.cause]).min()) if len(pairs.cause) else 0
    cause_s = (pairs.cause_ns - rough_ns[pairs.cause] - axis_ns) / _NS_PER_S
    effect_s = (pairs.effect_ns - rough_ns[pairs.effect] - axis_ns) / _NS_PER_S
    # The clock nearer to the reference times the pair: less may be wrong with it.
    time_s = np.where(hops[pairs.effect] < hops[pairs.cause], effect_s, cause_s)
    level = _level(_Edges(pairs.cause, pairs.effect, time_s, effect_s - cause_s, len(names)), reference)
    fit = _fit(level, reference, -rough_ns / _NS_PER_S)
    hosts = tuple(
        _clock(name, names[reference], clock, level, fit, int(rough_ns[clock]), axis_ns)
        for clock, name in enumerate(names)
    )
    return Clocks(hosts, contradiction_ns=round(fit.missing_s * _NS_PER_S))


def _rough_offsets(pairs: Pairs, clocks: int, reference: int) -> tuple[Counts, Counts]:
    """Estimate offsets to within the usual latencies: median gaps along paths from the reference, and their lengths.

    They put the times of all clocks on one axis, however far apart the clocks are.
    """
    rough, hops = np.zeros(clocks, np.int64), np.full(clocks, clocks)
    hops[reference] = 0
    gap_ns = pairs.effect_ns - pairs.cause_ns
    for hop in range(1, clocks):
        known = hops < hop
        forward = known[pairs.cause] & ~known[pairs.effect]
        backward = known[pairs.effect] & ~known[pairs.cause]
        for clock in np.unique(np.concatenate((pairs.effect[forward], pairs.cause[backward]))):
            ahead = forward & (pairs.effect == clock)
            behind = backward & (pairs.cause == clock)
            offers = [gap_ns[ahead] + rough[pairs.cause[ahead]], rough[pairs.effect[behind]] - gap_ns[behind]]
            rough[clock] = round(float(np.mean([np.median(each) for each in offers if len(each)])))
            hops[clock] = hop
    return rough, hops


def _level(edges: _Edges, reference: int) -> _Level:
    """Find the drift of each clock."""
    window, centers_s = _windows(edges.time_s)
    lines = _lines(edges, reference, window, centers_s)
    slopes = np.array([line[1:] for line in lines])
    middle, error = slopes.mean(axis=1), np.ptp(slopes, axis=1) / 2
    drift = np.where(np.abs(middle) <= error, 0.0, middle)
    if not edges.at(0.0, drift).tightest().is_consistent():
        drift = middle
    return _Level(drift, middle, error, edges)


def _windows(time_s: Reals) -> tuple[Counts, Reals]:
    """Return the window of each time, and the centers of all windows. Bad times far from the rest stretch no window."""
    if not len(time_s):
        return np.zeros(0, np.int64), np.arange(0.5, _WINDOWS)
    early_s, late_s = np.quantile(time_s, (0.25, 0.75))
    first_s = max(float(time_s.min()), 2 * early_s - late_s)
    last_s = min(float(time_s.max()), 2 * late_s - early_s)
    width_s = max((last_s - first_s) / _WINDOWS, _ROUNDING_S)
    window = np.clip((time_s - first_s) / width_s, 0, _WINDOWS - 1).astype(np.int64)
    return window, np.asarray(first_s + (np.arange(_WINDOWS) + 0.5) * width_s, np.float64)


def _lines(edges: _Edges, reference: int, window: Counts, centers_s: Reals) -> list[_Line]:
    """Find the line of each clock. The first pass does not know the drift within a window; later ones remove it."""
    shape = (_WINDOWS, edges.count)
    place = window * edges.count
    apart = _Edges(place + edges.cause, place + edges.effect, edges.time_s, edges.gap_s, _WINDOWS * edges.count)
    sources = np.arange(_WINDOWS) * edges.count + reference
    drift, error = np.zeros(edges.count), np.full(edges.count, MOST_DRIFT_RATIO)
    lines: list[_Line] = []
    for _ in range(_PASSES):
        own = (np.tile(each, _WINDOWS) for each in (drift, error))
        found = apart.at(centers_s[window], *own).bounds(sources, edges.count + 1)
        low_s, high_s = (each.reshape(shape) for each in found)
        lines = [_line_through(*each, centers_s) for each in zip(low_s.T, high_s.T, strict=True)]
        drift, error = (np.array([(line[2] + sign * line[1]) / 2 for line in lines]) for sign in (1, -1))
    return lines


def _line_through(low_s: Reals, high_s: Reals, at_s: Reals) -> _Line:
    """Return a line through the bounds of one clock, without the windows that fewest others agree with."""
    used = np.flatnonzero(np.isfinite(low_s) | np.isfinite(high_s))
    while True:
        lines = _fewest_lines(low_s[used], high_s[used], at_s[used], used)
        if len(lines) < 2:
            return lines[0] if lines else _Line(used, -MOST_DRIFT_RATIO, MOST_DRIFT_RATIO)
        used = np.setdiff1d(used, min(lines, key=lambda line: len(line.windows)).windows)


def _fewest_lines(low_s: Reals, high_s: Reals, at_s: Reals, windows: Counts) -> list[_Line]:
    """Extend each line while one fits: its slope is limited by each two bounds."""
    apart_s = at_s[None, :] - at_s[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.where(apart_s > 0, (low_s[None, :] - high_s[:, None] - _ROUNDING_S) / apart_s, -MOST_DRIFT_RATIO)
        most = np.where(apart_s > 0, (high_s[None, :] - low_s[:, None] + _ROUNDING_S) / apart_s, MOST_DRIFT_RATIO)
    least, most = np.maximum(least, -MOST_DRIFT_RATIO), np.minimum(most, MOST_DRIFT_RATIO)
    lines: list[_Line] = []
    first = 0
    while first < len(windows):
        lows = np.maximum.accumulate(least[first:, first:].max(axis=0))
        highs = np.minimum.accumulate(most[first:, first:].min(axis=0))
        count = int((lows <= highs).sum())
        lines.append(_Line(windows[first : first + count], float(lows[count - 1]), float(highs[count - 1])))
        first += count
    return lines


def _missing_s(edges: _Edges) -> float:
    """Seconds that every bound has to be relaxed by until none contradicts the others; 0 if none does."""
    if edges.is_consistent():
        return 0.0
    low_s, high_s = 0.0, float(-edges.gap_s.min())
    for _ in range(40):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if edges.relaxed(middle_s).is_consistent() else (middle_s, high_s)
    return high_s


def _fit(level: _Level, reference: int, unchanged_s: Reals) -> _Fit:
    """Choose offsets that contradict no edge, and that leave a clock unchanged wherever the edges allow it.

    unchanged_s: by clock, the offset on the common axis of one that agrees with the reference.
    """
    source = np.array([reference])
    tightest = level.edges.at(0.0, level.drift).tightest()
    missing_s = _missing_s(tightest)
    edges, rounds = tightest.relaxed(missing_s), tightest.count + 1
    free = edges.bounds(source, rounds)
    kept = _unchanged(edges, free, np.flatnonzero(level.drift == 0), unchanged_s, reference)
    bounds = edges.held(kept, unchanged_s, reference).bounds(source, rounds)
    is_bounded = np.isfinite(free.low_s) & np.isfinite(free.high_s)
    low_s, high_s = (np.where(is_bounded, each, unchanged_s) for each in bounds)
    offset_s, half_s = (low_s + high_s) / 2, (high_s - low_s) / 2 + missing_s
    is_off = np.isfinite(free.low_s) | np.isfinite(free.high_s)
    is_off[kept] = False
    ends_s = [offset_s - unchanged_s + level.drift * np.where(is_off, at_s, 0.0) for at_s in _spans(level.edges)]
    most_s = np.max(np.abs(ends_s), axis=0)
    is_moved = is_off & is_bounded & (most_s > _SURE * half_s)
    offset_s, drift = np.where(is_moved, offset_s, unchanged_s), np.where(is_moved, level.drift, 0.0)
    error_s = np.where(is_bounded, _errors_s(level, source, offset_s, drift, missing_s), np.inf)
    if missing_s:
        is_off &= most_s > error_s
    return _Fit(free, offset_s, drift, is_off, is_moved & is_off, error_s, missing_s)


def _unchanged(edges: _Edges, free: _Bounds, level: Counts, unchanged_s: Reals, reference: int) -> list[int]:
    """Return clocks that may all stay as recorded. The safest come first: their bounds leave the most room."""
    room_s = np.minimum(unchanged_s - free.low_s, free.high_s - unchanged_s)
    fits = [int(node) for node in level if room_s[node] >= -_ROUNDING_S]
    if edges.held(fits, unchanged_s, reference).is_consistent():
        return fits
    kept = [reference]
    for node in sorted(set(fits) - {reference}, key=lambda node: -room_s[node]):
        if edges.held([*kept, node], unchanged_s, reference).is_consistent():
            kept.append(node)
    return kept


def _errors_s(level: _Level, source: Counts, offset_s: Reals, drift: Reals, missing_s: float) -> Reals:
    """Return how far the truth may be from each line at the worst time: pairs bound it less, the further they are."""
    first_s, last_s = _spans(level.edges)
    worst_s = np.zeros(level.edges.count)
    for at_s in _windows(level.edges.time_s)[1]:
        edges = level.edges.at(at_s, level.middle_drift, level.drift_error).tightest().relaxed(missing_s)
        bounds = edges.bounds(source, edges.count + 1)
        line_s = offset_s + drift * at_s
        error_s = np.maximum(bounds.high_s - line_s, line_s - bounds.low_s) + missing_s
        worst_s = np.where((first_s <= at_s) & (at_s <= last_s), np.maximum(worst_s, error_s), worst_s)
    return worst_s


def _spans(edges: _Edges) -> tuple[Reals, Reals]:
    """First and last time of each clock among the edges, one window wider, so that a short one has a time in it."""
    first_s, last_s = np.full(edges.count, np.inf), np.full(edges.count, -np.inf)
    for ends in (edges.cause, edges.effect):
        np.minimum.at(first_s, ends, edges.time_s)
        np.maximum.at(last_s, ends, edges.time_s)
    margin_s = float(np.ptp(edges.time_s)) / _WINDOWS if len(edges.time_s) else 0.0
    return first_s - margin_s, last_s + margin_s


def _clock(host: str, against: str, clock: int, level: _Level, fit: _Fit, rough_ns: int, axis_ns: int) -> HostClock:
    """Return one of the clocks, in nanoseconds of that clock."""
    limits: list[int | None] = [None, None]
    if not level.drift[clock] and not fit.missing_s:
        ends_s = [float(each[clock]) for each in fit.free]
        limits = [round(end_s * _NS_PER_S) + rough_ns if np.isfinite(end_s) else None for end_s in ends_s]
    read_ns, error_s = round(fit.offset_s[clock] * _NS_PER_S), float(fit.uncertainty_s[clock])
    return HostClock(
        host=host,
        against=against,
        offset_ns=read_ns + rough_ns if fit.is_moved[clock] else 0,
        # By the clock itself, which reads more than the reference while it gains.
        drift_ratio=float(fit.drift[clock] / (1 + fit.drift[clock])),
        origin_ns=axis_ns + rough_ns + read_ns,
        uncertainty_ns=round(error_s * _NS_PER_S) if np.isfinite(error_s) else None,
        least_ns=limits[0],
        most_ns=limits[1],
        is_off=bool(fit.is_off[clock]),
        is_corrected=bool(np.isfinite(error_s) and fit.is_moved[clock]),
    )
