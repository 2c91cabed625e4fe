"""The offsets of clocks are found from causes and effects alone, and are never further off than stated."""

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlscope.trace.clock_offsets import Clocks, HostClock, Pairs, estimate_clocks

NS: Final = 10**9
START_NS: Final = 1_700_000_000 * NS
YEAR_S: Final = 365 * 86_400


def clock(true_s: Any, offset_s: float = 0.0, drift: float = 0.0, step: tuple[float, float] | None = None) -> Any:
    """What a clock reads at a true time: ahead by offset_s, gaining drift, set forward by step[1] at step[0]."""
    true_s = np.asarray(true_s, float)
    jump_s = 0.0 if step is None else np.where(true_s >= step[0], step[1], 0.0)
    return START_NS + round(offset_s * NS) + np.round((true_s * (1 + drift) + jump_s) * NS).astype(np.int64)


def star(clocks: list[dict[str, Any]], lasting_s: float = 80.0, seed: int = 0, cells: int = 64) -> Pairs:
    """Each other host hears from host 0 and answers it once a cell, 10 ms later and more."""
    rng = np.random.default_rng(seed)
    columns: list[list[int]] = [[], [], [], []]
    for host in range(1, len(clocks)):
        for cell in range(cells):
            for cause, effect in ((0, host), (host, 0)):
                sent_s = lasting_s * (cell + rng.random()) / cells
                heard_s = sent_s + 0.01 + rng.exponential(0.02)
                row = (cause, effect, int(clock(sent_s, **clocks[cause])), int(clock(heard_s, **clocks[effect])))
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
    return Pairs(*(np.array(column, np.int64) for column in columns))


def estimated(given: Pairs, hosts: int) -> Clocks:
    """The clocks of hosts that are named by their numbers. The clock of host 0 is the reference."""
    return estimate_clocks(given, [str(host) for host in range(hosts)], 0)


def worst_error_ns(found: HostClock, own: dict[str, Any], reference: dict[str, Any], lasting_s: float) -> float:
    """By how much a corrected time of the host misses what the reference's clock read at that moment."""
    true_s = np.linspace(0, lasting_s, 101)
    own_ns = clock(true_s, **own)
    return float(np.abs(own_ns - found.ahead_ns(own_ns) - clock(true_s, **reference)).max())


@pytest.mark.parametrize(
    ("own", "most_ms"),
    [({"offset_s": 0.05}, 0.7), ({"drift": 1e-4}, 0.8), ({"offset_s": 0.05, "drift": 2e-5}, 0.8)],
)
def test_an_offset_and_a_drift_of_an_hour_are_known_to_about_a_millisecond(
    own: dict[str, float], most_ms: float
) -> None:
    """Messages need 10 ms and more in each direction."""
    (_, found) = estimated(star([{}, own], 3600.0), 2).hosts
    assert found.offset_ns / 1e9 == pytest.approx(own.get("offset_s", 0.0), abs=0.002)
    assert found.drift_ratio == pytest.approx(own.get("drift", 0.0), abs=1e-6)
    assert worst_error_ns(found, own, {}, 3600.0) <= most_ms * 1e6
    assert 15 < (found.uncertainty_ns or 0) / 1e6 < 21


OFFSETS: Final = st.sampled_from([0.0, 0.05, -0.05, 5.0, -60.0, float(YEAR_S)])
DRIFTS: Final = st.sampled_from([0.0, 1e-4, -1e-4, 2e-5])
CLOCKS: Final = st.lists(st.builds(dict, offset_s=OFFSETS, drift=DRIFTS), min_size=2, max_size=5)


@given(CLOCKS, st.sampled_from([80.0, 3600.0, 86_400.0]), st.integers(0, 10_000))
def test_a_corrected_time_is_off_by_no_more_than_stated(
    clocks: list[dict[str, Any]], lasting_s: float, seed: int
) -> None:
    found = estimated(star(clocks, lasting_s, seed), len(clocks))
    for own, estimate in zip(clocks, found.hosts, strict=True):
        assert estimate.uncertainty_ns is not None
        # Rounded to a nanosecond, in floats of up to a year.
        assert worst_error_ns(estimate, own, clocks[0], lasting_s) <= (estimate.uncertainty_ns or 0) + 100


def pairs(*rows: tuple[int, int, int, int]) -> Pairs:
    """(cause, effect, time of the cause, time of the effect)."""
    return Pairs(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def bounds(found: Clocks) -> list[tuple[int | None, int | None]]:
    return [(each.least_ns, each.most_ns) for each in found.hosts]


@pytest.mark.parametrize("least_ns", [-10, 0])
def test_a_clock_that_contradicts_nothing_or_just_touches_its_bound_stays_as_it_is(least_ns):
    found = estimated(pairs((0, 1, 100, 130), (1, 0, 200, 200 - least_ns)), 2)
    assert bounds(found) == [(0, 0), (least_ns, 30)]
    assert not found.hosts[1].is_off and found.hosts[1].offset_ns == 0


def test_a_clock_that_contradicts_an_order_is_put_in_the_middle_of_its_bounds():
    found = estimated(pairs((0, 1, 1000, 8000), (1, 0, 9000, 4000)), 2)
    assert bounds(found)[1] == (5000, 7000)
    assert found.hosts[1].is_off and found.hosts[1].offset_ns == 6000


def test_bounds_of_clocks_that_never_met_follow_from_those_between():
    """Host 2 hears only from host 1 and tells only host 0."""
    found = estimated(pairs((0, 1, 0, 500), (1, 2, 1000, 1300), (2, 0, 2000, 1900)), 3)
    assert bounds(found) == [(0, 0), (-200, 500), (100, 800)]


def test_a_clock_with_one_bound_is_known_to_be_off_but_not_corrected():
    (_, own) = estimated(pairs((1, 0, 9000, 4000)), 2).hosts
    assert (own.is_off, own.uncertainty_ns is not None, own.least_ns, own.most_ns) == (True, False, 5000, None)
    assert (own.offset_ns, own.drift_ratio, own.is_corrected) == (0, 0.0, False)


@pytest.mark.parametrize("given", [pairs((0, 1, 100, 130), (1, 0, 200, 210)), star([{}], cells=0)])
def test_a_clock_that_no_pair_joins_is_not_known_at_all(given: Pairs):
    own = estimated(given, 3).hosts[2]
    assert (own.is_off, own.uncertainty_ns, own.least_ns, own.most_ns) == (False, None, None, None)


def test_no_drift_is_known_from_a_minute():
    assert estimated(star([{}, {"drift": 1e-4}], 60.0), 2).hosts[1].drift_ratio == 0.0


@pytest.mark.parametrize("hosts", [2, 3])
def test_a_clock_that_is_set_during_the_run_is_a_contradiction_and_corrects_nothing(hosts: int):
    """No recorder reads the wall clock a second time."""
    found = estimated(star([{}, {"step": (40.0, 5.0)}, {}][:hosts]), hosts)
    assert found.contradiction_ns > 2 * NS
    assert not any(each.is_corrected for each in found.hosts)


def test_what_no_clock_explains_is_stated_and_corrects_nothing():
    """Every effect on host 1 precedes its cause by 200 ms, and every answer by 10 ms."""
    given = star([{}, {}])
    gap_ns = np.where(given.cause == 0, -200_000_000, -10_000_000)
    found = estimated(given._replace(effect_ns=given.cause_ns + gap_ns), 2)
    assert not found.hosts[1].is_off and found.hosts[1].offset_ns == 0
    assert abs(found.contradiction_ns - 105_000_000) < 1_000_000


def test_the_joint_bounds_are_tighter_than_those_of_each_pair():
    """Host 1 hears late from the reference but soon from host 2, which hears soon from it."""
    direct = ((0, 1, 0, 900), (1, 0, 5000, 5010), (0, 2, 0, 20), (2, 0, 5000, 5020))
    alone, joint = (estimated(pairs(*rows), 3) for rows in (direct, (*direct, (2, 1, 3000, 3030))))
    assert (bounds(alone)[1], bounds(joint)[1]) == ((-10, 900), (-10, 50))


def test_wrong_times_of_a_few_rows_widen_the_uncertainty_and_are_stated():
    """Wrong times of an hour or a year must not stretch the windows of a run of 80 s either."""
    given = star([{}, {"offset_s": 86_400.0}, {}])
    wrong = given.effect_ns.copy()
    wrong[[3, 40]] -= 3600 * NS
    wrong[[100, 200]] += (YEAR_S * NS, 3600 * NS)
    found = estimated(given._replace(effect_ns=wrong), 3)
    assert found.contradiction_ns == pytest.approx(3600 * NS, rel=0.01)
    (_, far, near) = found.hosts
    assert (far.is_corrected, near.is_corrected) == (True, False)
    assert abs(far.offset_ns - 86_400 * NS) <= (far.uncertainty_ns or 0)
