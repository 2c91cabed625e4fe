"""Bounds between clocks as edges of a graph, their joint implications, and their contradictions.

A contradiction of one pair with its neighbors is a bad row; one that lasts is a step of one clock, which is then cut in
two. Times are in seconds on an axis that all clocks share except for their offsets.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from rlscope.model.arrays import Counts, Flags, Reals

MOST_DRIFT_RATIO: Final = 5e-4
"""Maximum drift of a clock from another: a time daemon slews by up to 500 ppm, quartz stays within 100."""
BINS: Final = 64
"""Parts of the run in which pairs are compared."""
_LEAST_SUPPORT: Final = 3
"""Bins that have to agree before a contradiction is a step and not bad rows."""
_AFTER: Final = 12
"""Bounds after a step that must not contradict each other; if they do, there is no step."""
_NEIGHBOURS: Final = 6
"""Pairs that a bad pair is compared with."""
_MOST_STEPS: Final = 16
_MOST_BAD: Final = 64


@dataclass(frozen=True, slots=True)
class Edges:
    """Bounds: node `effect` is ahead of node `cause` by at most gap_s. Times in seconds on a common axis."""

    cause: Counts
    effect: Counts
    time_s: Reals
    gap_s: Reals
    count: int
    """Number of nodes."""

    def only(self, kept: Flags) -> "Edges":
        """Return the edges that are kept."""
        return Edges(self.cause[kept], self.effect[kept], self.time_s[kept], self.gap_s[kept], self.count)

    def ends(self, owners: Counts) -> Counts:
        """Count edges by the owner of either end, one place for each node."""
        counts = np.bincount(owners[self.cause], minlength=self.count)
        return counts + np.bincount(owners[self.effect], minlength=self.count)

    def tightest(self, gap_s: Reals) -> tuple[Counts, Counts, Reals]:
        """Return the smallest of the given gaps for each pair of nodes."""
        keys, places = np.unique(self.cause * self.count + self.effect, return_inverse=True)
        least = np.full(len(keys), np.inf)
        np.minimum.at(least, places, gap_s)
        return keys // self.count, keys % self.count, least


class Bounds(NamedTuple):
    """Bounds on how far each node is ahead of the reference, in seconds; infinite if unbounded."""

    low_s: Reals
    high_s: Reals


def _shortest(count: int, cause: Counts, effect: Counts, gap_s: Reals, sources: Counts | None) -> Reals | None:
    """Distances from the sources, or from anywhere, by Bellman and Ford; None if a cycle has a negative length."""
    distance, is_settled = distances(count, cause, effect, gap_s, sources, count + 1)
    return distance if is_settled.all() else None


def distances(
    count: int, cause: Counts, effect: Counts, gap_s: Reals, sources: Counts | None, rounds: int
) -> tuple[Reals, Flags]:
    """Return the distances after `rounds` rounds, and whether each was unchanged in the last one."""
    distance = np.full(count, 0.0 if sources is None else np.inf)
    if sources is not None:
        distance[sources] = 0.0
    is_settled = np.zeros(count, bool)
    for _ in range(rounds):
        before = distance.copy()
        np.minimum.at(distance, effect, before[cause] + gap_s)
        # The clocks resolve one nanosecond; sums of floats differ by less.
        is_settled = ~(distance < before - 1e-9)
        if is_settled.all():
            break
    return distance, is_settled


def is_consistent(count: int, cause: Counts, effect: Counts, gap_s: Reals) -> bool:
    """Whether some offsets satisfy every bound."""
    return _shortest(count, cause, effect, gap_s, None) is not None


def bounds_of(count: int, cause: Counts, effect: Counts, gap_s: Reals, sources: Counts) -> Bounds | None:
    """Return the tightest bounds that all gaps imply together; None if they contradict each other."""
    high = _shortest(count, cause, effect, gap_s, sources)
    low = _shortest(count, effect, cause, gap_s, sources)
    return None if high is None or low is None else Bounds(-low, high)


def without_isolated(edges: Edges) -> Edges:
    """Remove the edges that contradict the others by themselves.

    From a cycle of negative length, the edge is removed that lies furthest below the next of its pair of clocks, if
    that resolves most of the contradiction. A drift or a step is shared by many edges and stays. If a drift or step
    hides the bad edges, those far below all of their neighbors are removed.
    """
    kept, is_settled = _without_cycles(edges)
    if not is_settled:
        kept, is_settled = _without_cycles(kept.only(~_refuted(kept)))
    if not is_settled and (far := _far_below(kept)).any():
        kept, _ = _without_cycles(kept.only(~far))
    return kept


def _refuted(edges: Edges) -> Flags:
    """Flag edges that contradict all others, between pairs of clocks with few edges to compare them with.

    None if the rest contradicts itself by more than a drift, or does not bound both clocks.
    """
    refuted = np.zeros(len(edges.cause), bool)
    _, places, counts = np.unique(edges.cause * edges.count + edges.effect, return_inverse=True, return_counts=True)
    is_judged = counts[places] > _LEAST_SUPPORT
    rest, _ = _without_cycles(edges.only(is_judged))
    drifted_s = MOST_DRIFT_RATIO * float(np.ptp(edges.time_s))
    for slack_s in (0.0, drifted_s):
        cause, effect, gap_s = rest.tightest(rest.gap_s + slack_s)
        if not is_consistent(edges.count, cause, effect, gap_s):
            continue
        for clock in np.unique(edges.cause[~is_judged]):
            own = np.flatnonzero(~is_judged & (edges.cause == clock))
            bounds = bounds_of(edges.count, cause, effect, gap_s, np.array([clock]))
            if bounds is not None:
                low_s, high_s = bounds.low_s[edges.effect[own]], bounds.high_s[edges.effect[own]]
                refuted[own] = np.isfinite(high_s) & (edges.gap_s[own] + slack_s < low_s - 1e-9)
        break
    return refuted


def _without_cycles(edges: Edges) -> tuple[Edges, bool]:
    """Remove the isolated edges of short cycles, and return whether no short cycle is left."""
    kept = np.ones(len(edges.cause), bool)
    for _ in range(_MOST_BAD):
        current = edges.only(kept)
        cycle = _short_cycle(current)
        if cycle is None:
            return current, True
        missing_s = -float(current.gap_s[cycle].sum())
        alone = [_isolation_s(current, edge) for edge in cycle]
        worst = int(np.argmax(alone))
        if alone[worst] < missing_s / 2:
            return current, False
        kept[np.flatnonzero(kept)[cycle[worst]]] = False
    return edges.only(kept), False


def _far_below(edges: Edges) -> Flags:
    """Flag edges that lie below all but one of their neighbors by several times the spread of those."""
    far = np.zeros(len(edges.cause), bool)
    keys = edges.cause * edges.count + edges.effect
    for key in np.unique(keys):
        own = np.flatnonzero(keys == key)
        if len(own) <= _NEIGHBOURS:
            continue
        own = own[np.argsort(edges.time_s[own], kind="stable")]
        gap_s, time_s = edges.gap_s[own], edges.time_s[own]
        places = np.clip(np.arange(len(own)) - _NEIGHBOURS // 2, 0, len(own) - _NEIGHBOURS - 1)
        around = places[:, None] + np.arange(_NEIGHBOURS + 1)
        around = around[around != np.arange(len(own))[:, None]].reshape(len(own), _NEIGHBOURS)
        others_s = np.sort(gap_s[around], axis=1)
        drifted_s = MOST_DRIFT_RATIO * np.ptp(time_s[around], axis=1)
        far[own] = others_s[:, 1] - gap_s > _NEIGHBOURS * (others_s[:, -1] - others_s[:, 1]) + drifted_s
    return far


def _isolation_s(edges: Edges, edge: int) -> float:
    """Distance of an edge below the second lowest edge of its pair of clocks that is close in time.

    A step that lasts is as low as its neighbors. 0 for an edge with few others to compare it with.
    """
    same = (edges.cause == edges.cause[edge]) & (edges.effect == edges.effect[edge])
    same[edge] = False
    others = np.flatnonzero(same)
    if len(others) < _LEAST_SUPPORT:
        return 0.0
    nearest = others[np.argsort(np.abs(edges.time_s[others] - edges.time_s[edge]), kind="stable")[:_NEIGHBOURS]]
    return float(np.partition(edges.gap_s[nearest], 1)[1] - edges.gap_s[edge])


def _short_cycle(edges: Edges) -> list[int] | None:
    """Return the edges of a cycle whose gaps sum to less than 0; None if there is no such cycle."""
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
class Nodes:
    """The clocks, each cut into one or several nodes by its steps, and the edges between nodes."""

    owners: tuple[int, ...]
    """Clock of each node; the nodes of a clock are in order of time."""
    starts_s: tuple[float | None, ...]
    """Start of each node, by the clocks that it is compared with; None for the first of a clock."""
    edges: Edges
    bad: Counts
    """Bad edges by the clock of either end; one place per node, 0 beyond the clocks."""


class _Step(NamedTuple):
    """A lasting contradiction between two nodes, as if the first had stepped."""

    node: int
    other: int
    before_s: float
    """Last bound before the step, by the other clock."""
    after_s: float


def cut_steps(nodes: Nodes, reference: int, drift_ratio: float) -> Nodes:
    """Cut the clock that steps against most others, until none steps; a change that a drift may explain is no step."""
    for _ in range(_MOST_STEPS):
        steps, lone = _find_steps(nodes.edges, drift_ratio)
        bad = nodes.bad + nodes.edges.only(lone).ends(np.array(nodes.owners))
        nodes = replace(nodes, edges=nodes.edges.only(~lone), bad=bad)
        if not steps:
            return nodes
        votes = np.bincount([step.node for step in steps], minlength=nodes.edges.count)
        # If two clocks only step against each other, the reference is right.
        stepped = max(range(nodes.edges.count), key=lambda node: (votes[node], nodes.owners[node] != reference))
        own = [step for step in steps if step.node == stepped]
        nodes = _cut(nodes, stepped, float(np.median([(step.before_s + step.after_s) / 2 for step in own])))
    return nodes


def _cut(nodes: Nodes, node: int, at_s: float) -> Nodes:
    """Split a node in two: observations of it from at_s on belong to a new node. Edges that span at_s are dropped."""
    edges, new = nodes.edges, nodes.edges.count
    seen_s = edges.time_s + edges.gap_s
    is_cause, is_effect = edges.cause == node, edges.effect == node
    by_others_s = np.where(is_effect, edges.time_s, seen_s)
    is_later = by_others_s >= at_s
    cut = Edges(
        np.where(is_cause & is_later, new, edges.cause),
        np.where(is_effect & is_later, new, edges.effect),
        edges.time_s,
        edges.gap_s,
        new + 1,
    )
    margin_s = float(np.ptp(edges.time_s)) / BINS
    astride = (is_cause | is_effect) & (np.abs(by_others_s - at_s) < margin_s)
    return Nodes(
        (*nodes.owners, nodes.owners[node]), (*nodes.starts_s, at_s), cut.only(~astride), np.append(nodes.bad, 0)
    )


def _find_steps(edges: Edges, drift_ratio: float) -> tuple[list[_Step], Flags]:
    """Find the times at which the bounds between two nodes change for good, and lone bad edges.

    A step of a pair is returned twice: as one of either node.
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
            found, bad = _first_step(by_other_s[order], bound_s[order], is_high[order], drift_ratio)
            # A larger number is no set of bad rows, but a contradiction that no clock explains.
            if len(bad) <= max(_LEAST_SUPPORT, len(own) // _NEIGHBOURS):
                lone[own[order][bad]] = True
            if found is not None:
                steps.append(_Step(node, other, *found))
    return steps, lone


def _first_step(
    time_s: Reals, bound_s: Reals, is_high: Flags, drift_ratio: float
) -> tuple[tuple[float, float] | None, list[int]]:
    """Find the first time at which bounds of one difference contradict the earlier ones for good, and lone bad bounds.

    A bound is from above if is_high, else from below. The difference may drift by drift_ratio.
    """
    low, high, last_s = -np.inf, np.inf, float(time_s[0])
    before_s, against = float(time_s[0]), list[int]()
    bad: list[int] = []
    for index, now_s in enumerate(time_s):
        spread = drift_ratio * (now_s - last_s)
        low, high, last_s = low - spread, high + spread, float(now_s)
        bound = bound_s[index]
        if (bound < low) if is_high[index] else (bound > high):
            against.append(index)
            if (
                len(against) >= _LEAST_SUPPORT
                and _agree(time_s, is_high, against)
                and _is_sound(bound_s[index:][:_AFTER], is_high[index:][:_AFTER])
            ):
                return (before_s, float(time_s[against[0]])), bad
            continue
        if against and _speaks(bound_s, is_high, index, against):
            # Later bounds are as before: these were bad rows.
            bad += against
            against = []
        low, high = (low, min(high, bound)) if is_high[index] else (max(low, bound), high)
        before_s = before_s if against else float(now_s)
    return None, bad


def _agree(time_s: Reals, is_high: Flags, found: list[int]) -> bool:
    """Whether the bounds are all from one side, over different times."""
    return len({bool(is_high[each]) for each in found}) == 1 and time_s[found[-1]] > time_s[found[0]]


def _is_sound(bound_s: Reals, is_high: Flags) -> bool:
    """Whether bounds allow any difference at all."""
    return bool(np.max(bound_s[~is_high], initial=-np.inf) <= np.min(bound_s[is_high], initial=np.inf))


def _speaks(bound_s: Reals, is_high: Flags, index: int, against: list[int]) -> bool:
    """Whether a bound contradicts those that contradict the earlier ones."""
    if is_high[index] == is_high[against[0]]:
        return False
    if is_high[index]:
        return bool(bound_s[index] < max(bound_s[each] for each in against))
    return bool(bound_s[index] > min(bound_s[each] for each in against))
