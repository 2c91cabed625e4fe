"""`for`, `keep_firing_for` and gaps, on both sides of each edge."""

import pytest

from rlscope.alerts.evaluate import INACTIVE, LOOKBACK_NS, Phase, RuleState, advance
from rlscope.alerts.series import MetricReading
from rlscope.alerts.types import Direction, Rule, RuleWindow
from tests.alerts.given import S


def rule(for_s: int = 0, keep_s: int = 0, direction: Direction = "above") -> Rule:
    return Rule("r", "queue.depth", direction, 4.0, RuleWindow(S), for_s * S, keep_s * S)


def run(of: Rule, values: list[float | None], every_s: int = 10) -> tuple[str, list[tuple[int, int]]]:
    """The phase after each tick as a letter, and (fired, resolved) seconds of each stretch that ended."""
    state, letters, ended = INACTIVE, "", list[tuple[int, int]]()
    for tick, value in enumerate(values, start=1):
        at_ns = tick * every_s * S
        before, state = state, advance(of, state, at_ns, MetricReading(value, 1))
        letters += {"inactive": ".", "pending": "p", "firing": "F"}[state.phase]
        if before.phase == "firing" != state.phase:
            ended.append((before.fired_ns // S, at_ns // S))
    return letters, ended


@pytest.mark.parametrize(
    ("of", "values", "letters"),
    [
        # A value on the threshold is not beyond it.
        (rule(), [4.0], "."),
        (rule(), [4.000001], "F"),
        (rule(direction="below"), [4.0], "."),
        (rule(direction="below"), [3.999999], "F"),
        # A rule fires on the tick on which it held for so long. One at which it does not hold starts the wait anew.
        (rule(0), [5, 5, 5, 5], "FFFF"),
        (rule(1), [5, 5, 5, 5], "pFFF"),
        (rule(20), [5, 5, 5, 5], "ppFF"),
        (rule(21), [5, 5, 5, 5], "pppF"),
        (rule(20), [5, 5, 4, 5, 5, 5], "pp.ppF"),
        # It goes on firing until it was kept for so long. Holding again starts that anew; what is pending is not kept.
        (rule(keep_s=0), [5, 4, 4, 4], "F..."),
        (rule(keep_s=20), [5, 4, 4, 4], "FFF."),
        (rule(keep_s=21), [5, 4, 4, 4], "FFFF"),
        (rule(20, keep_s=60), [5, 4, 5], "p.p"),
        # Without data nothing fires and nothing is resolved.
        (rule(), [5, None, None, 4], "FFF."),
        (rule(20), [5, None, None, 5], "pppF"),
        (rule(20), [5, None, None, None], "pppp"),
        (rule(), [None, None], ".."),
    ],
)
def test_the_phase_after_each_tick(of: Rule, values: list[float | None], letters: str) -> None:
    assert run(of, values)[0] == letters


def test_a_stretch_ends_on_the_first_tick_at_which_it_neither_holds_nor_is_kept() -> None:
    assert run(rule(), [5, 5, 4, 5, 4]) == ("FF.F.", [(10, 30), (40, 50)])
    assert run(rule(keep_s=20), [5, 4, 5, 4, 4, 4]) == ("FFFFF.", [(10, 60)])


def test_after_the_lookback_no_data_counts_as_not_holding() -> None:
    ticks = LOOKBACK_NS // (60 * S)
    assert run(rule(), [5] + [None] * ticks, every_s=60)[0] == "F" * (ticks + 1)
    assert run(rule(), [5] + [None] * (ticks + 1), every_s=60) == ("F" * (ticks + 1) + ".", [(60, (ticks + 2) * 60)])
    assert run(rule(60, keep_s=60), [5] + [None] * (ticks + 1), every_s=60)[0] == "p" * (ticks + 1) + "."


@pytest.mark.parametrize(("direction", "worst"), [("above", 9.0), ("below", -2.0)])
def test_the_worst_value_is_the_furthest_beyond_the_threshold(direction: Direction, worst: float) -> None:
    state = INACTIVE
    values = [5, 9, 6] if direction == "above" else [3, -2, 1]
    for tick, value in enumerate(values):
        state = advance(rule(direction=direction), state, tick * S, MetricReading(value, 7, "e0"))
    assert (state.value, state.worst_value, state.evidence, state.worker_id) == (values[-1], worst, 7, "e0")


@pytest.mark.parametrize("phase", ["firing", "pending"])
def test_a_stretch_that_ends_leaves_nothing_behind_but_when_data_was_last_seen(phase: Phase) -> None:
    state = RuleState(phase, 1, 1, None, 1, 5, 5, 3, "e0")
    assert advance(rule(60), state, 2, MetricReading(0, 1)) == RuleState(known_ns=2)
