"""The clocks of several hosts, from the order of causes and effects alone: an offset and a drift for each, and steps.

No effect precedes its cause, so each pair bounds the difference of two clocks from one side. All bounds together are a
system of difference constraints; shortest paths from the reference give the tightest bounds that they imply for every
clock at once (Cormen, Leiserson, Rivest, Stein, Introduction to Algorithms, section "Difference constraints and
shortest paths"). The range of straight lines through bounds over time is that of Duda, Harrus, Haddad and Bernard,
Estimating global time in distributed systems (ICDCS 1987).

A pair that contradicts the others by itself is a bad row and is left out: that only widens the bounds. A contradiction
that lasts is a step of one clock, and the clock is then two. Not covered: a clock that wanders around a straight line,
and the first moments around a step, which are cut at the nearest pair.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals

MOST_DRIFT_RATIO: Final = 5e-4
"""The most that a clock drifts from another: a time daemon slews by up to 500 ppm, quartz stays within 100."""
_BINS: Final = 64
"""Of the run, in which pairs are compared."""
_LEAST_SUPPORT: Final = 3
"""Bins that have to agree before a contradiction is a step and not bad rows."""
_NEIGHBOURS: Final = 6
"""Pairs that a bad one is compared with."""
_MOST_STEPS: Final = 16
_MOST_BAD: Final = 64
_NS_PER_S: Final = 1e9


class Pairs(NamedTuple):
    """Causes and their effects on other hosts; arrays of one length."""

    cause: Counts
    """Index of the clock that the cause was read from."""
    effect: Counts
    cause_ns: Counts
    """By that clock."""
    effect_ns: Counts

    def only(self, kept: Flags) -> "Pairs":
        """Those of them that are kept."""
        return Pairs(*(column[kept] for column in self))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch over which a clock keeps one offset and one drift."""

    from_ns: int | None
    """Its start by that clock; None for the first."""
    offset_ns: int
    """How far the clock is ahead of the reference at origin_ns."""
    drift_ratio: float
    """Seconds that it gains in each second after origin_ns."""
    origin_ns: int
    """By that clock."""
    uncertainty_ns: int | None
    """Half of the widest interval of the offset, or more where the offset is not its middle; None for no bound."""


@dataclass(frozen=True, slots=True)
class ClockEstimate:
    """What is known of one clock."""

    stretches: tuple[Stretch, ...]
    """In order. One with offset 0 where no difference from the reference was found."""
    least_ns: int | None
    """Lower bound of a constant offset; None where nothing bounds it from below, or no constant fits."""
    most_ns: int | None
    is_off: bool
    """Whether the clock contradicts the order of causes as it is, so that an offset was found."""
    is_bounded: bool
    """Whether both sides are bounded."""


class Estimate(NamedTuple):
    """The clocks in the order of their indices, and what had to be left out."""

    clocks: tuple[ClockEstimate, ...]
    bad_pairs: int
    """Pairs that contradict the others by themselves."""


@dataclass(frozen=True, slots=True)
class _Edges:
    """Bounds: node `effect` is ahead of node `cause` by at most gap_s. Times in seconds on a common axis."""

    cause: Counts
    effect: Counts
    time_s: Reals
    gap_s: Reals
    count: int
    """Nodes."""

    def only(self, kept: Flags) -> "_Edges":
        return _Edges(self.cause[kept], self.effect[kept], self.time_s[kept], self.gap_s[kept], self.count)

    def tightest(self, gap_s: Reals) -> tuple[Counts, Counts, Reals]:
        """For each pair of nodes the least of the given gaps."""
        keys, places = np.unique(self.cause * self.count + self.effect, return_inverse=True)
        least = np.full(len(keys), np.inf)
        np.minimum.at(least, places, gap_s)
        return keys // self.count, keys % self.count, least


class _Bounds(NamedTuple):
    """How far each node is ahead of the reference, in seconds; infinite where nothing bounds it."""

    low_s: Reals
    high_s: Reals


def estimate_clocks(pairs: Pairs, clocks: int, reference: int) -> Estimate:
    """The offsets of all clocks against the reference, from all pairs at once.

    The reference keeps the offset 0. A clock that no path of pairs joins to it has no bounds.
    """
    rough_ns = _rough_offsets(pairs, clocks, reference)
    axis_ns = int((pairs.cause_ns - rough_ns[pairs.cause]).min()) if len(pairs.cause) else 0
    own_s = (pairs.cause_ns - rough_ns[pairs.cause] - axis_ns) / _NS_PER_S
    seen_s = (pairs.effect_ns - rough_ns[pairs.effect] - axis_ns) / _NS_PER_S
    edges = _Edges(pairs.cause, pairs.effect, own_s, seen_s - own_s, clocks)
    edges, bad = _without_isolated(edges)
    nodes = _Nodes(tuple(range(clocks)), (None,) * clocks, edges)
    if not _is_consistent(edges.count, *edges.tightest(edges.gap_s)):
        nodes = _cut_steps(nodes, reference)
    fitted = _fit(nodes.edges, reference, -rough_ns[list(nodes.owners)] / _NS_PER_S)
    return Estimate(
        tuple(_clock(each, nodes, fitted, int(rough_ns[each]), axis_ns) for each in range(clocks)), bad + nodes.bad
    )


def _rough_offsets(pairs: Pairs, clocks: int, reference: int) -> Counts:
    """Offsets to within the usual latencies: the median gap of each pair of clocks, along paths from the reference.

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


def _shortest(count: int, cause: Counts, effect: Counts, gap_s: Reals, sources: Counts | None) -> Reals | None:
    """Distances from the sources, or from anywhere, by Bellman and Ford; None where a cycle is shorter than nothing."""
    distance, is_settled = _distances(count, cause, effect, gap_s, sources, count + 1)
    return distance if is_settled.all() else None


def _distances(
    count: int, cause: Counts, effect: Counts, gap_s: Reals, sources: Counts | None, rounds: int
) -> tuple[Reals, Flags]:
    """Distances after so many rounds, and which of them changed no more in the last one."""
    distance = np.full(count, 0.0 if sources is None else np.inf)
    if sources is not None:
        distance[sources] = 0.0
    is_settled = np.zeros(count, bool)
    for _ in range(rounds):
        before = distance.copy()
        np.minimum.at(distance, effect, before[cause] + gap_s)
        # A nanosecond is what the clocks resolve; sums of floats differ by less.
        is_settled = ~(distance < before - 1e-9)
        if is_settled.all():
            break
    return distance, is_settled


def _is_consistent(count: int, cause: Counts, effect: Counts, gap_s: Reals) -> bool:
    return _shortest(count, cause, effect, gap_s, None) is not None


def _bounds(count: int, cause: Counts, effect: Counts, gap_s: Reals, sources: Counts) -> _Bounds | None:
    """The tightest bounds that all gaps imply together; None where they contradict each other."""
    high = _shortest(count, cause, effect, gap_s, sources)
    low = _shortest(count, effect, cause, gap_s, sources)
    return None if high is None or low is None else _Bounds(-low, high)


def _without_isolated(edges: _Edges) -> tuple[_Edges, int]:
    """The edges without those that contradict the others by themselves, and how many those were.

    Of a cycle that is shorter than nothing, the edge goes that lies furthest below the next of its pair of clocks, if
    that resolves most of the contradiction. A drift or a step is shared by many edges and stays.
    """
    kept = np.ones(len(edges.cause), bool)
    for bad in range(_MOST_BAD):
        current = edges.only(kept)
        cycle = _short_cycle(current)
        if cycle is None:
            return current, bad
        missing_s = -float(current.gap_s[cycle].sum())
        alone = [_isolation_s(current, edge) for edge in cycle]
        worst = int(np.argmax(alone))
        if alone[worst] < missing_s / 2:
            return current, bad
        kept[np.flatnonzero(kept)[cycle[worst]]] = False
    return edges.only(kept), _MOST_BAD


def _isolation_s(edges: _Edges, edge: int) -> float:
    """How far an edge lies below those of its pair of clocks that are next to it in time, but one.

    A step is as low as its neighbours, if it lasts. 0 for an edge with few others, which nothing judges.
    """
    same = (edges.cause == edges.cause[edge]) & (edges.effect == edges.effect[edge])
    same[edge] = False
    others = np.flatnonzero(same)
    if len(others) < _LEAST_SUPPORT:
        return 0.0
    nearest = others[np.argsort(np.abs(edges.time_s[others] - edges.time_s[edge]), kind="stable")[:_NEIGHBOURS]]
    return float(np.partition(edges.gap_s[nearest], 1)[1] - edges.gap_s[edge])


def _short_cycle(edges: _Edges) -> list[int] | None:
    """Edges around which the gaps sum up to less than nothing; None if there is no such cycle."""
    order = np.lexsort((edges.gap_s, edges.effect, edges.cause))
    first = np.ones(len(order), bool)
    first[1:] = np.diff(edges.cause[order] * edges.count + edges.effect[order]) != 0
    tight = order[first]
    cause, effect, gap_s = edges.cause[tight], edges.effect[tight], edges.gap_s[tight]
    distance, via = np.zeros(edges.count), np.full(edges.count, -1)
    changed = None
    for _ in range(edges.count + 1):
        changed = None
        for edge in np.flatnonzero(distance[cause] + gap_s < distance[effect] - 1e-9):
            reached = distance[cause[edge]] + gap_s[edge]
            if reached < distance[effect[edge]] - 1e-9:
                distance[effect[edge]], via[effect[edge]], changed = reached, edge, effect[edge]
        if changed is None:
            return None
    node = changed
    for _ in range(edges.count):
        node = cause[via[node]]
    cycle, start = [via[node]], node
    node = cause[via[node]]
    while node != start:
        cycle.append(via[node])
        node = cause[via[node]]
    return [int(tight[edge]) for edge in cycle]


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The clocks, each cut into one node or several by its steps, and the edges between nodes."""

    owners: tuple[int, ...]
    """The clock of each node; the nodes of a clock stand in the order of time."""
    starts_s: tuple[float | None, ...]
    """When each node begins, by the clocks that it is compared with; None for the first of a clock."""
    edges: _Edges
    bad: int = 0


class _Step(NamedTuple):
    """A contradiction between two nodes that lasts, as if the first had stepped."""

    node: int
    other: int
    before_s: float
    """The last bound before it, by the clock of the other."""
    after_s: float


def _cut_steps(nodes: _Nodes, reference: int) -> _Nodes:
    """Cut the clock that steps against most others, until none steps."""
    for _ in range(_MOST_STEPS):
        steps, lone = _find_steps(nodes.edges)
        nodes = replace(nodes, edges=nodes.edges.only(~lone), bad=nodes.bad + int(lone.sum()))
        if not steps:
            return nodes
        votes = np.bincount([step.node for step in steps], minlength=nodes.edges.count)
        # Of two clocks that step against each other alone, the reference is right.
        stepped = max(range(nodes.edges.count), key=lambda node: (votes[node], nodes.owners[node] != reference))
        own = [step for step in steps if step.node == stepped]
        nodes = _cut(nodes, stepped, float(np.median([(step.before_s + step.after_s) / 2 for step in own])))
    return nodes


def _cut(nodes: _Nodes, node: int, at_s: float) -> _Nodes:
    """Make two of a node: what others saw of it from at_s on is a new one's. What lies astride is left out."""
    edges, new = nodes.edges, nodes.edges.count
    seen_s = edges.time_s + edges.gap_s
    is_cause, is_effect = edges.cause == node, edges.effect == node
    by_others_s = np.where(is_effect, edges.time_s, seen_s)
    is_later = by_others_s >= at_s
    cut = _Edges(
        np.where(is_cause & is_later, new, edges.cause),
        np.where(is_effect & is_later, new, edges.effect),
        edges.time_s,
        edges.gap_s,
        new + 1,
    )
    margin_s = float(np.ptp(edges.time_s)) / _BINS
    astride = (is_cause | is_effect) & (np.abs(by_others_s - at_s) < margin_s)
    return _Nodes((*nodes.owners, nodes.owners[node]), (*nodes.starts_s, at_s), cut.only(~astride), nodes.bad)


def _find_steps(edges: _Edges) -> tuple[list[_Step], Flags]:
    """Where the bounds between two nodes change for good, and lone bad edges.

    A step of a pair is there twice: as one of either node.
    """
    keys = np.minimum(edges.cause, edges.effect) * edges.count + np.maximum(edges.cause, edges.effect)
    steps: list[_Step] = []
    lone = np.zeros(len(edges.cause), bool)
    for key in np.unique(keys):
        own = np.flatnonzero(keys == key)
        for node, other in (divmod(int(key), edges.count), divmod(int(key), edges.count)[::-1]):
            is_high = edges.effect[own] == node
            by_other_s = edges.time_s[own] + np.where(is_high, 0.0, edges.gap_s[own])
            order = np.argsort(by_other_s, kind="stable")
            bound_s = np.where(is_high, edges.gap_s[own], -edges.gap_s[own])
            found, bad = _first_step(by_other_s[order], bound_s[order], is_high[order])
            lone[own[order][bad]] = True
            if found is not None:
                steps.append(_Step(node, other, *found))
    return steps, lone


def _first_step(time_s: Reals, bound_s: Reals, is_high: Flags) -> tuple[tuple[float, float] | None, list[int]]:
    """Where bounds of one difference over time contradict the earlier ones for good, and lone ones that do.

    A bound is from above where is_high, else from below. The difference may drift by MOST_DRIFT_RATIO.
    """
    low, high, last_s = -np.inf, np.inf, float(time_s[0])
    before_s, against = float(time_s[0]), list[int]()
    bad: list[int] = []
    for index, now_s in enumerate(time_s):
        spread = MOST_DRIFT_RATIO * (now_s - last_s)
        low, high, last_s = low - spread, high + spread, float(now_s)
        bound = bound_s[index]
        if (bound < low) if is_high[index] else (bound > high):
            against.append(index)
            if len(against) >= _LEAST_SUPPORT and _agree(time_s, is_high, against):
                return (before_s, float(time_s[against[0]])), bad
            continue
        if against and _speaks(bound_s, is_high, index, against):
            # What follows is as before: those were bad rows.
            bad += against
            against = []
        low, high = (low, min(high, bound)) if is_high[index] else (max(low, bound), high)
        before_s = before_s if against else float(now_s)
    return None, bad


def _agree(time_s: Reals, is_high: Flags, found: list[int]) -> bool:
    """Whether the bounds are all from one side, over different times."""
    return len({bool(is_high[each]) for each in found}) == 1 and time_s[found[-1]] > time_s[found[0]]


def _speaks(bound_s: Reals, is_high: Flags, index: int, against: list[int]) -> bool:
    """Whether a bound contradicts those that contradict what was before."""
    if is_high[index] == is_high[against[0]]:
        return False
    if is_high[index]:
        return bool(bound_s[index] < max(bound_s[each] for each in against))
    return bool(bound_s[index] > min(bound_s[each] for each in against))


class _Fit(NamedTuple):
    """A straight line for each node, with what is known of it, in seconds on the common axis."""

    at_zero_s: Reals
    drift: Reals
    is_off: Flags
    is_bounded: Flags
    uncertainty_s: Reals
    constant: _Bounds | None
    """Bounds of constant offsets; None where no constants fit."""


class _Drifts(NamedTuple):
    """The range of each node's drift."""

    middle: Reals
    half: Reals


def _fit(edges: _Edges, reference: int, unchanged_s: Reals) -> _Fit:
    """Lines that contradict no edge, and that are those of an unchanged clock wherever the edges allow it.

    unchanged_s: the offset, on the common axis, that means that a clock agrees with the reference.
    """
    drifts, source = _drift_ranges(edges, reference), np.array([reference])
    constant = _bounds(edges.count, *edges.tightest(edges.gap_s), source)
    drift, slack_s = np.zeros(edges.count), 0.0
    if constant is None:
        may_keep = np.abs(drifts.middle) <= drifts.half
        drift = np.where(may_keep, 0.0, drifts.middle)
        if not _is_consistent(edges.count, *edges.tightest(_level(edges, drift))):
            drift = drifts.middle
        slack_s = _missing_s(edges, drift)
    tight = edges.tightest(_level(edges, drift) + slack_s)
    free = _bounds(edges.count, *tight, source) or _Bounds(unchanged_s, unchanged_s)
    pinned = source if constant is None else _pinned(edges.count, *tight, reference, unchanged_s)
    fixed = _with_pinned(*tight, pinned, unchanged_s, reference)
    bounds = _bounds(edges.count, *fixed, source) or free
    is_bounded = np.isfinite(free.low_s) & np.isfinite(free.high_s)
    with np.errstate(invalid="ignore"):
        at_zero_s = np.where(is_bounded, (bounds.low_s + bounds.high_s) / 2, unchanged_s)
    at_zero_s[pinned] = unchanged_s[pinned]
    drift = np.where(is_bounded, drift, 0.0)
    is_off = np.isfinite(free.low_s) | np.isfinite(free.high_s)
    is_off[pinned] = False
    spread_s = _uncertainty_s(edges, reference, drifts, at_zero_s, drift, slack_s) + slack_s
    spread_s[~is_bounded] = np.inf
    return _Fit(at_zero_s, drift, is_off, is_bounded, spread_s, constant)


def _level(edges: _Edges, drift: Reals) -> Reals:
    """The gaps that are left when the drifts are taken out of both times."""
    seen_s = edges.time_s + edges.gap_s
    return edges.gap_s - drift[edges.effect] * seen_s + drift[edges.cause] * edges.time_s


def _missing_s(edges: _Edges, drift: Reals) -> float:
    """By how much every bound has to give way until none contradicts the others: 0 where none does."""
    cause, effect, gap_s = edges.tightest(_level(edges, drift))
    if _is_consistent(edges.count, cause, effect, gap_s):
        return 0.0
    low, high = 0.0, float(max(-gap_s.min(), 1e-6))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_consistent(edges.count, cause, effect, gap_s + middle) else (middle, high)
    return high


def _with_pinned(
    cause: Counts, effect: Counts, gap_s: Reals, pinned: Counts, unchanged_s: Reals, reference: int
) -> tuple[Counts, Counts, Reals]:
    """The gaps, and those that hold the pinned nodes at the offset of an unchanged clock."""
    source = np.full(len(pinned), reference)
    return (
        np.concatenate((cause, source, pinned)),
        np.concatenate((effect, pinned, source)),
        np.concatenate((gap_s, unchanged_s[pinned], -unchanged_s[pinned])),
    )


def _pinned(count: int, cause: Counts, effect: Counts, gap_s: Reals, reference: int, unchanged_s: Reals) -> Counts:
    """The nodes that may stay as they are, all at once: a clock is changed only where it contradicts an order."""
    bounds = _bounds(count, cause, effect, gap_s, np.array([reference]))
    if bounds is None:
        return np.array([reference])
    fits = (bounds.low_s <= unchanged_s) & (unchanged_s <= bounds.high_s)
    fits[reference] = True
    every = np.flatnonzero(fits)
    if _is_consistent(count, *_with_pinned(cause, effect, gap_s, every, unchanged_s, reference)):
        return every
    # The surest first: those whose bounds leave the most room around no change.
    room_s = np.minimum(unchanged_s - bounds.low_s, bounds.high_s - unchanged_s)
    kept = [reference]
    for node in sorted(set(every.tolist()) - {reference}, key=lambda node: -room_s[node]):
        tried = np.array([*kept, node])
        if _is_consistent(count, *_with_pinned(cause, effect, gap_s, tried, unchanged_s, reference)):
            kept.append(node)
    return np.array(kept)


def _drift_ranges(edges: _Edges, reference: int) -> _Drifts:
    """The drifts of straight lines through the bounds of all nodes over time, at most MOST_DRIFT_RATIO.

    The first pass knows nothing of drifts within a bin; the next ones take out what is known already.
    """
    drifts = _Drifts(np.zeros(edges.count), np.full(edges.count, MOST_DRIFT_RATIO))
    drifts.half[reference] = 0.0
    if not len(edges.cause):
        return drifts
    width_s = max(float(np.ptp(edges.time_s)) / _BINS, 1e-9)
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


def _bin_bounds(edges: _Edges, reference: int, drifts: _Drifts, width_s: float) -> _Bounds:
    """The bounds of each bin alone, of shape (bins, nodes); drifts beside their middle widen them.

    A bin whose edges contradict each other bounds nothing.
    """
    place = np.minimum(_BINS - 1, ((edges.time_s - edges.time_s.min()) / width_s).astype(np.int64))
    gap_s = _widened(edges, drifts, edges.time_s.min() + (place + 0.5) * width_s)
    cause, effect = place * edges.count + edges.cause, place * edges.count + edges.effect
    sources = np.arange(_BINS) * edges.count + reference
    limits: list[Reals] = []
    for ends in ((cause, effect), (effect, cause)):
        distance, is_settled = _distances(_BINS * edges.count, *ends, gap_s, sources, edges.count + 1)
        distance = distance.reshape(_BINS, edges.count)
        distance[~is_settled.reshape(_BINS, edges.count).all(axis=1)] = np.inf
        limits.append(distance)
    high_s, low_s = limits[0], -limits[1]
    return _Bounds(low_s, high_s)


def _widened(edges: _Edges, drifts: _Drifts, at_s: Reals | float) -> Reals:
    """The gaps without the middle drifts, as they bound the offsets at another time."""
    seen_s = edges.time_s + edges.gap_s
    far_s = drifts.half[edges.cause] * np.abs(edges.time_s - at_s) + drifts.half[edges.effect] * np.abs(seen_s - at_s)
    return _level(edges, drifts.middle) + far_s


def _slopes(low_s: Reals, high_s: Reals, width_s: float) -> tuple[float, float]:
    """The least and the greatest slope of a line between bounds of bins that are width_s apart."""
    apart_s = width_s * (np.arange(len(low_s))[None, :] - np.arange(len(low_s))[:, None])
    later = apart_s > 0
    with np.errstate(invalid="ignore"):
        rise_least, rise_most = low_s[None, :] - high_s[:, None], high_s[None, :] - low_s[:, None]
    return float(np.max(rise_least[later] / apart_s[later])), float(np.min(rise_most[later] / apart_s[later]))


def _uncertainty_s(
    edges: _Edges, reference: int, drifts: _Drifts, at_zero_s: Reals, drift: Reals, slack_s: float
) -> Reals:
    """How far the offsets can be from the lines, at the worst time of each node; infinite where nothing bounds it."""
    if not len(edges.cause):
        return np.full(edges.count, np.inf)
    worst = np.zeros(edges.count)
    first, last = _spans(edges)
    for at_s in np.linspace(float(edges.time_s.min()), float(edges.time_s.max()), _BINS + 1):
        bounds = _bounds(
            edges.count, *edges.tightest(_widened(edges, drifts, float(at_s)) + slack_s), np.array([reference])
        )
        if bounds is None:
            continue
        line_s = at_zero_s + (drift - drifts.middle) * at_s
        off_s = np.maximum(bounds.high_s - line_s, line_s - bounds.low_s)
        inside = (first <= at_s) & (at_s <= last)
        worst = np.where(inside, np.maximum(worst, off_s), worst)
    return worst


def _spans(edges: _Edges) -> tuple[Reals, Reals]:
    """The first and the last time of each node among the edges, a bin wider, so that a short one has a time in it."""
    first, last = np.full(edges.count, np.inf), np.full(edges.count, -np.inf)
    margin_s = float(np.ptp(edges.time_s)) / _BINS
    for nodes, times_s in ((edges.cause, edges.time_s), (edges.effect, edges.time_s + edges.gap_s)):
        np.minimum.at(first, nodes, times_s)
        np.maximum.at(last, nodes, times_s)
    return first - margin_s, last + margin_s


def _clock(clock: int, nodes: _Nodes, fit: _Fit, rough_ns: int, axis_ns: int) -> ClockEstimate:
    """What the fit says of one clock, in nanoseconds of its own."""
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
    return ClockEstimate(stretches, limits[0], limits[1], bool(fit.is_off[own].any()), bool(fit.is_bounded[own].all()))


def _stretch(node: int, before: int, nodes: _Nodes, fit: _Fit, rough_ns: int, axis_ns: int) -> Stretch:
    start_s, spread_s = nodes.starts_s[node], fit.uncertainty_s[node]
    is_changed = fit.is_off[node] and fit.is_bounded[node]
    if start_s is not None:
        # Between the last time by the clock before its step and the first after it.
        start_s += float(fit.at_zero_s[before] + fit.at_zero_s[node]) / 2
    return Stretch(
        from_ns=None if start_s is None else round(start_s * _NS_PER_S) + axis_ns + rough_ns,
        offset_ns=round(fit.at_zero_s[node] * _NS_PER_S) + rough_ns if is_changed else 0,
        drift_ratio=float(fit.drift[node]) if is_changed else 0.0,
        origin_ns=axis_ns + rough_ns,
        uncertainty_ns=round(spread_s * _NS_PER_S) if np.isfinite(spread_s) else None,
    )
