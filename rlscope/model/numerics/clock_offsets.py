"""Estimate the clocks of several hosts from the order of causes and effects alone: offset, drift, and steps of each.

No effect precedes its cause, so each pair bounds the difference of two clocks from one side. All bounds together are a
system of difference constraints; shortest paths from the reference give the tightest bounds that they imply for every
clock at once (Cormen, Leiserson, Rivest, Stein, Introduction to Algorithms, section "Difference constraints and
shortest paths"). The range of straight lines through bounds over time is that of Duda, Harrus, Haddad and Bernard,
Estimating global time in distributed systems (ICDCS 1987).

A pair that contradicts the others by itself is a bad row and is left out: that only widens the bounds. A contradiction
that lasts is a step of one clock, and the clock is then two. Not covered: a clock that wanders around a straight line,
and the first moments around a step, which are cut at the nearest pair.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals
from rlscope.model.numerics.clock_steps import (
    BINS,
    MOST_DRIFT_RATIO,
    Bounds,
    Edges,
    Nodes,
    bounds_of,
    cut_steps,
    distances,
    is_consistent,
    without_isolated,
)

_NS_PER_S: Final = 1e9
_USUAL_DRIFT_RATIO: Final = 2e-5
_SURE: Final = 2.0
"""Uncertainties that a clock must be off by before it is moved: the correction then errs by less than the clock did."""
_ROUNDING_S: Final = 5e-10
"""Times are whole nanoseconds: two bounds that differ by less touch each other."""


class Pairs(NamedTuple):
    """Causes and their effects on other hosts; arrays of one length."""

    cause: Counts
    """Index of the clock that the cause was read from."""
    effect: Counts
    cause_ns: Counts
    """Time of the cause by that clock."""
    effect_ns: Counts

    def only(self, kept: Flags) -> "Pairs":
        """Return the pairs that are kept."""
        return Pairs(*(column[kept] for column in self))


@dataclass(frozen=True, slots=True)
class ClockStretch:
    """A stretch over which a clock keeps one offset and one drift."""

    from_ns: int | None
    """Start by that clock; None for the first."""
    offset_ns: int
    """Nanoseconds that the clock is ahead of the reference at origin_ns."""
    drift_ratio: float
    """Seconds gained per second after origin_ns."""
    origin_ns: int
    """Time by that clock."""
    uncertainty_ns: int | None
    """Half of the widest interval of the offset, or more if the offset is not its middle; None if unbounded."""


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """Estimate of one clock."""

    stretches: tuple[ClockStretch, ...]
    """Stretches in order; one with offset 0 if no difference from the reference was found."""
    least_ns: int | None
    """Lower bound of a constant offset; None if nothing bounds it from below, or no constant fits."""
    most_ns: int | None
    is_off: bool
    """Whether the uncorrected clock contradicts the order of causes."""
    is_bounded: bool
    """Whether both sides are bounded."""
    is_moved: bool
    """Whether the stretches correct the clock: it is bounded, and off by more than the error of the correction."""


class Estimate(NamedTuple):
    """The clocks in the order of their indices, and the excluded pairs."""

    clocks: tuple[ClockEstimate, ...]
    bad_pairs: int
    """Pairs that contradict the others by themselves."""
    bad_clocks: tuple[int, ...]
    """Clocks that all of these pairs share."""
    contradiction_ns: int
    """Contradiction between the remaining pairs that no clock explains; 0 if there is none."""


def estimate_clocks(pairs: Pairs, clocks: int, reference: int) -> Estimate:
    """Estimate the offsets of all clocks against the reference, from all pairs at once.

    The reference keeps the offset 0. A clock that no path of pairs connects to it has no bounds.
    """
    rough_ns = _rough_offsets(pairs, clocks, reference)
    axis_ns = int((pairs.cause_ns - rough_ns[pairs.cause]).min()) if len(pairs.cause) else 0
    own_s = (pairs.cause_ns - rough_ns[pairs.cause] - axis_ns) / _NS_PER_S
    seen_s = (pairs.effect_ns - rough_ns[pairs.effect] - axis_ns) / _NS_PER_S
    given, places = Edges(pairs.cause, pairs.effect, own_s, seen_s - own_s, clocks), np.arange(clocks)
    edges = without_isolated(given)
    nodes = Nodes(tuple(range(clocks)), (None,) * clocks, edges, given.ends(places) - edges.ends(places))
    fitted = _fit(nodes, reference, rough_ns)
    if fitted.constant is None:
        # In a long run a step may be smaller than the maximum drift of a clock: most clocks drift by less.
        tried = [cut_steps(nodes, reference, most) for most in (MOST_DRIFT_RATIO, _USUAL_DRIFT_RATIO)]
        fits = [(_fit(each, reference, rough_ns), each) for each in tried]
        # Cuts have to explain something: to 0.01 s, use the fewest that leave the least unexplained.
        fitted, nodes = min(fits, key=lambda fit: (round(fit[0].missing_s, 2), fit[1].edges.count))
    missing_ns = round(fitted.missing_s * _NS_PER_S)
    found = tuple(_clock(each, nodes, fitted, int(rough_ns[each]), axis_ns) for each in range(clocks))
    bad_pairs = int(nodes.bad.sum()) // 2
    shared = np.flatnonzero(nodes.bad == bad_pairs) if bad_pairs else ()
    return Estimate(found, bad_pairs, tuple(map(int, shared)), missing_ns)


def _rough_offsets(pairs: Pairs, clocks: int, reference: int) -> Counts:
    """Estimate offsets to within the usual latencies: median gaps along paths from the reference.

    They put the times of all clocks on one axis, however far apart the clocks are.
    """
    rough = np.zeros(clocks, np.int64)
    known = {reference}
    gap_ns = pairs.effect_ns - pairs.cause_ns
    while True:
        forward = np.isin(pairs.cause, list(known)) & ~np.isin(pairs.effect, list(known))
        backward = np.isin(pairs.effect, list(known)) & ~np.isin(pairs.cause, list(known))
        found = np.unique(np.concatenate((pairs.effect[forward], pairs.cause[backward])))
        if not len(found):
            return rough
        for clock in found:
            ahead = forward & (pairs.effect == clock)
            behind = backward & (pairs.cause == clock)
            offers = [gap_ns[ahead] + rough[pairs.cause[ahead]], rough[pairs.effect[behind]] - gap_ns[behind]]
            rough[clock] = round(float(np.mean([np.median(each) for each in offers if len(each)])))
        known |= set(found.tolist())


class _Fit(NamedTuple):
    """A straight line for each node, with its bounds, in seconds on the common axis."""

    at_zero_s: Reals
    drift: Reals
    is_off: Flags
    is_bounded: Flags
    is_moved: Flags
    uncertainty_s: Reals
    constant: Bounds | None
    """Bounds of constant offsets; None if no constants fit."""
    missing_s: float
    """Seconds that had to be added to every bound, if lines do not fit either."""


class _Drifts(NamedTuple):
    """Range of each node's drift."""

    middle: Reals
    half: Reals


def _fit(nodes: Nodes, reference: int, rough_ns: Counts) -> _Fit:
    """Fit lines that contradict no edge, and that leave a clock unchanged wherever the edges allow it."""
    edges = nodes.edges
    # On the common axis, this offset means that a clock agrees with the reference.
    unchanged_s = -rough_ns[list(nodes.owners)] / _NS_PER_S
    drifts, source = _drift_ranges(edges, reference), np.array([reference])
    constant = bounds_of(edges.count, *edges.tightest(edges.gap_s), source)
    drift, slack_s = np.zeros(edges.count), 0.0
    if constant is None:
        may_keep = np.abs(drifts.middle) <= drifts.half
        drift = np.where(may_keep, 0.0, drifts.middle)
        if not is_consistent(edges.count, *edges.tightest(_level(edges, drift))):
            drift = drifts.middle
        slack_s = _missing_s(edges, drift)
    tight = edges.tightest(_level(edges, drift) + slack_s)
    free = bounds_of(edges.count, *tight, source) or Bounds(unchanged_s, unchanged_s)
    pinned = source if constant is None else _pinned(edges.count, *tight, reference, unchanged_s)
    fixed = _with_pinned(*tight, pinned, unchanged_s, reference)
    bounds = bounds_of(edges.count, *fixed, source) or free
    is_bounded = np.isfinite(free.low_s) & np.isfinite(free.high_s)
    with np.errstate(invalid="ignore"):
        at_zero_s = np.where(is_bounded, (bounds.low_s + bounds.high_s) / 2, unchanged_s)
        half_s = np.where(is_bounded, (bounds.high_s - bounds.low_s) / 2, np.inf) + slack_s
    at_zero_s[pinned] = unchanged_s[pinned]
    is_off = np.isfinite(free.low_s) | np.isfinite(free.high_s)
    is_off[pinned] = False
    ends_s = np.maximum(*(np.abs(at_zero_s - unchanged_s + drift * np.where(is_off, at, 0.0)) for at in _spans(edges)))
    is_moved = is_off & (ends_s > _SURE * half_s)
    at_zero_s, drift = np.where(is_moved, at_zero_s, unchanged_s), np.where(is_moved, drift, 0.0)
    spread_s = _uncertainty_s(edges, reference, drifts, at_zero_s, drift, slack_s) + slack_s
    spread_s[~is_bounded] = np.inf
    if slack_s:
        is_off &= ends_s > spread_s
    return _Fit(at_zero_s, drift, is_off, is_bounded, is_off & is_moved, spread_s, constant, slack_s)


def _level(edges: Edges, drift: Reals) -> Reals:
    """Remove the drifts from both times, and return the remaining gaps."""
    seen_s = edges.time_s + edges.gap_s
    return edges.gap_s - drift[edges.effect] * seen_s + drift[edges.cause] * edges.time_s


def _missing_s(edges: Edges, drift: Reals) -> float:
    """Seconds that every bound has to be relaxed by until none contradicts the others; 0 if none does."""
    cause, effect, gap_s = edges.tightest(_level(edges, drift))
    if is_consistent(edges.count, cause, effect, gap_s):
        return 0.0
    low, high = 0.0, float(max(-gap_s.min(), 1e-6))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if is_consistent(edges.count, cause, effect, gap_s + middle) else (middle, high)
    return high


def _with_pinned(
    cause: Counts, effect: Counts, gap_s: Reals, pinned: Counts, unchanged_s: Reals, reference: int
) -> tuple[Counts, Counts, Reals]:
    """Add gaps that hold the pinned nodes at the offset of an unchanged clock."""
    source = np.full(len(pinned), reference)
    return (
        np.concatenate((cause, source, pinned)),
        np.concatenate((effect, pinned, source)),
        np.concatenate((gap_s, unchanged_s[pinned], -unchanged_s[pinned])),
    )


def _pinned(count: int, cause: Counts, effect: Counts, gap_s: Reals, reference: int, unchanged_s: Reals) -> Counts:
    """Nodes that may all stay as they are: a clock is changed only if it contradicts an order."""
    bounds = bounds_of(count, cause, effect, gap_s, np.array([reference]))
    if bounds is None:
        return np.array([reference])
    fits = (bounds.low_s <= unchanged_s + _ROUNDING_S) & (unchanged_s - _ROUNDING_S <= bounds.high_s)
    fits[reference] = True
    every = np.flatnonzero(fits)
    if is_consistent(count, *_with_pinned(cause, effect, gap_s, every, unchanged_s, reference)):
        return every
    # The safest first: those whose bounds leave the most room around no change.
    room_s = np.minimum(unchanged_s - bounds.low_s, bounds.high_s - unchanged_s)
    kept = [reference]
    for node in sorted(set(every.tolist()) - {reference}, key=lambda node: -room_s[node]):
        tried = np.array([*kept, node])
        if is_consistent(count, *_with_pinned(cause, effect, gap_s, tried, unchanged_s, reference)):
            kept.append(node)
    return np.array(kept)


def _drift_ranges(edges: Edges, reference: int) -> _Drifts:
    """Drifts of straight lines through the bounds of all nodes over time, at most MOST_DRIFT_RATIO.

    The first pass does not know the drifts within a bin; later passes remove the known part.
    """
    drifts = _Drifts(np.zeros(edges.count), np.full(edges.count, MOST_DRIFT_RATIO))
    drifts.half[reference] = 0.0
    if not len(edges.cause):
        return drifts
    width_s = max(float(np.ptp(edges.time_s)) / BINS, 1e-9)
    for _ in range(3):
        found = _bin_bounds(edges, reference, drifts, width_s)
        for node in range(edges.count):
            if node != reference:
                least, most = _slopes(found.low_s[:, node], found.high_s[:, node], width_s)
                least, most = max(least, -drifts.half[node]), min(most, drifts.half[node])
                if least <= most:
                    drifts.middle[node] += (least + most) / 2
                    drifts.half[node] = max((most - least) / 2, 1e-12)
    return drifts


def _bin_bounds(edges: Edges, reference: int, drifts: _Drifts, width_s: float) -> Bounds:
    """Bounds of each bin alone, of shape (bins, nodes); drifts away from their middle widen them.

    A bin whose edges contradict each other bounds nothing.
    """
    place = np.minimum(BINS - 1, ((edges.time_s - edges.time_s.min()) / width_s).astype(np.int64))
    gap_s = _widened(edges, drifts, edges.time_s.min() + (place + 0.5) * width_s)
    cause, effect = place * edges.count + edges.cause, place * edges.count + edges.effect
    sources = np.arange(BINS) * edges.count + reference
    limits: list[Reals] = []
    for ends in ((cause, effect), (effect, cause)):
        distance, is_settled = distances(BINS * edges.count, *ends, gap_s, sources, edges.count + 1)
        distance = distance.reshape(BINS, edges.count)
        distance[~is_settled.reshape(BINS, edges.count).all(axis=1)] = np.inf
        limits.append(distance)
    high_s, low_s = limits[0], -limits[1]
    return Bounds(low_s, high_s)


def _widened(edges: Edges, drifts: _Drifts, at_s: Reals | float) -> Reals:
    """Gaps without the middle drifts, as they bound the offsets at another time."""
    seen_s = edges.time_s + edges.gap_s
    far_s = drifts.half[edges.cause] * np.abs(edges.time_s - at_s) + drifts.half[edges.effect] * np.abs(seen_s - at_s)
    return _level(edges, drifts.middle) + far_s


def _slopes(low_s: Reals, high_s: Reals, width_s: float) -> tuple[float, float]:
    """Smallest and largest slope of a line between bounds of bins that are width_s apart."""
    apart_s = width_s * (np.arange(len(low_s))[None, :] - np.arange(len(low_s))[:, None])
    later = apart_s > 0
    with np.errstate(invalid="ignore"):
        rise_least, rise_most = low_s[None, :] - high_s[:, None], high_s[None, :] - low_s[:, None]
    return float(np.max(rise_least[later] / apart_s[later])), float(np.min(rise_most[later] / apart_s[later]))


def _uncertainty_s(
    edges: Edges, reference: int, drifts: _Drifts, at_zero_s: Reals, drift: Reals, slack_s: float
) -> Reals:
    """Maximum distance of the offsets from the lines, at the worst time of each node; infinite if unbounded."""
    if not len(edges.cause):
        return np.full(edges.count, np.inf)
    worst = np.zeros(edges.count)
    first, last = _spans(edges)
    for at_s in np.linspace(float(edges.time_s.min()), float(edges.time_s.max()), BINS + 1):
        bounds = bounds_of(
            edges.count, *edges.tightest(_widened(edges, drifts, float(at_s)) + slack_s), np.array([reference])
        )
        if bounds is None:
            continue
        line_s = at_zero_s + (drift - drifts.middle) * at_s
        off_s = np.maximum(bounds.high_s - line_s, line_s - bounds.low_s)
        inside = (first <= at_s) & (at_s <= last)
        worst = np.where(inside, np.maximum(worst, off_s), worst)
    return worst


def _spans(edges: Edges) -> tuple[Reals, Reals]:
    """First and last time of each node among the edges, one bin wider, so that a short one has a time in it."""
    first, last = np.full(edges.count, np.inf), np.full(edges.count, -np.inf)
    margin_s = float(np.ptp(edges.time_s)) / BINS if len(edges.time_s) else 0.0
    for nodes, times_s in ((edges.cause, edges.time_s), (edges.effect, edges.time_s + edges.gap_s)):
        np.minimum.at(first, nodes, times_s)
        np.maximum.at(last, nodes, times_s)
    return first - margin_s, last + margin_s


def _clock(clock: int, nodes: Nodes, fit: _Fit, rough_ns: int, axis_ns: int) -> ClockEstimate:
    """Estimate of one clock by the fit, in nanoseconds of that clock."""
    own = [node for node, owner in enumerate(nodes.owners) if owner == clock]
    own.sort(key=lambda node: -np.inf if (start_s := nodes.starts_s[node]) is None else start_s)
    stretches = tuple(
        _stretch(node, before, nodes, fit, rough_ns, axis_ns) for before, node in zip([own[0], *own], own, strict=False)
    )
    first = own[0]
    limits: list[int | None] = [None, None]
    if fit.constant is not None and len(own) == 1:
        ends_s = (fit.constant.low_s[first], fit.constant.high_s[first])
        limits = [round(end_s * _NS_PER_S) + rough_ns if np.isfinite(end_s) else None for end_s in ends_s]
    is_bounded = bool(fit.is_bounded[own].all())
    is_moved = is_bounded and bool(fit.is_moved[own].any())
    return ClockEstimate(stretches, limits[0], limits[1], bool(fit.is_off[own].any()), is_bounded, is_moved)


def _stretch(node: int, before: int, nodes: Nodes, fit: _Fit, rough_ns: int, axis_ns: int) -> ClockStretch:
    start_s, spread_s = nodes.starts_s[node], fit.uncertainty_s[node]
    is_changed = fit.is_moved[node]
    if start_s is not None:
        # Between the last time by the clock before its step and the first after it.
        start_s += float(fit.at_zero_s[before] + fit.at_zero_s[node]) / 2
    return ClockStretch(
        from_ns=None if start_s is None else round(start_s * _NS_PER_S) + axis_ns + rough_ns,
        offset_ns=round(fit.at_zero_s[node] * _NS_PER_S) + rough_ns if is_changed else 0,
        drift_ratio=float(fit.drift[node]) if is_changed else 0.0,
        origin_ns=axis_ns + rough_ns,
        uncertainty_ns=round(spread_s * _NS_PER_S) if np.isfinite(spread_s) else None,
    )
