"""One engine by hand: when its boundaries are, who joins, who leaves, and what its seconds went into."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rlscope.model.simulate.dispatch import EngineFleet
from rlscope.model.simulate.engine import EngineTerms, SimulatedEngine
from rlscope.model.simulate.samples import Draws, Samples

TERMS = EngineTerms(
    empty_pass_s=(0.0, 3.0, 4.0, 5.0, 6.0),
    kv_s_per_token=0.5,
    max_running=4,
    kv_capacity_tokens=math.inf,
    prompt_tokens=2.0,
    prefill_s_per_token=0.0,
    prefill_pass_s=0.0,
    pause_s=7.0,
    kv_kept=True,
)


class Given(Draws):
    """Lengths as listed, groups of one, all kept."""

    has_pauses = False

    def __init__(self, lengths: list[int]) -> None:
        self.listed = lengths

    def groups(self, count: int) -> tuple[list[int], list[bool]]:
        return self.listed, [True] * len(self.listed)


def started(lengths: list[int], draws: type[Given] = Given) -> Samples:
    samples = Samples(draws(lengths), 1)
    for _ in lengths:
        samples.start_group()
    return samples


def engine_with(lengths: list[int], terms: EngineTerms = TERMS, draws: type[Given] = Given) -> SimulatedEngine:
    engine = SimulatedEngine(0, terms, started(lengths, draws))
    engine.waiting.extend(range(len(lengths)))
    return engine


def test_a_pass_costs_its_batch_and_the_tokens_resident_when_it_starts() -> None:
    engine = engine_with([3, 5])
    # Two prompts of 2 tokens: K is 4, 6, 8 before the passes, which take 4 + K / 2 seconds each.
    assert engine.resume(0.0) == 6.0 + 7.0 + 8.0
    assert list(engine.settle(21.0)) == [0]
    # The other is left with 2 + 3 tokens; its last two passes take 3 + K / 2.
    assert engine.resume(21.0) == 21.0 + 5.5 + 6.0
    assert list(engine.settle(32.5)) == [1]
    assert engine.resume(32.5) == math.inf
    totals = engine.totals_at(40.0)
    assert (totals.passes, totals.tokens, totals.decode_s) == (5, 8, 32.5)
    assert totals.running_s == 2 * 21.0 + 11.5


@pytest.mark.parametrize(
    ("now_s", "boundary_s"),
    [(0.0, 0.0), (0.1, 6.0), (6.0, 6.0), (6.01, 13.0), (13.0, 13.0), (20.9, 21.0), (21.0, 21.0)],
)
def test_what_comes_up_during_a_pass_meets_the_engine_at_its_end(now_s: float, boundary_s: float) -> None:
    engine = engine_with([3, 5])
    engine.resume(0.0)
    engine.cut_short(now_s)
    assert engine.boundary_s() == boundary_s


@pytest.mark.parametrize("kv_s_per_token", [0.0, 1e-9, 1e-3])
def test_every_end_of_a_long_stretch_of_passes_is_found(kv_s_per_token: float) -> None:
    for passes in range(1, 2000, 7):
        engine = engine_with([2000] * 4, replace(TERMS, kv_s_per_token=kv_s_per_token))
        engine.resume(0.3)
        pass_s, bend_s = 6.0 + 8.0 * kv_s_per_token, 2.0 * kv_s_per_token
        end_s = 0.3 + passes * (pass_s + bend_s * (passes - 1))
        engine.cut_short(end_s - 1e-6)
        engine.settle(engine.boundary_s())
        assert engine.passes == passes


def test_a_boundary_in_a_stretch_changes_nothing_but_who_may_join() -> None:
    engine = engine_with([3, 5])
    engine.waiting.pop()
    engine.resume(0.0)
    engine.waiting.append(1)
    # Alone: K is 2, 3, 4 before the passes, which take 3 + K / 2.
    engine.cut_short(1.0)
    assert engine.boundary_s() == 4.0
    assert list(engine.settle(4.0)) == []
    # Joined by the other, K is 3 + 2, then 7: two more passes of 4 + K / 2 for the first.
    assert engine.resume(4.0) == 4.0 + 6.5 + 7.5
    assert list(engine.settle(18.0)) == [0]


def test_prefill_stops_the_batch_for_the_prompts_that_join() -> None:
    engine = engine_with([1, 9], replace(TERMS, prefill_s_per_token=0.25))
    assert engine.resume(0.0) == 2 * 2 * 0.25 + 6.0
    for now_s, prefill_s, decode_s in ((0.4, 0.4, 0.0), (1.0, 1.0, 0.0), (3.0, 1.0, 2.0)):
        totals = engine.totals_at(now_s)
        assert (totals.prefill_s, totals.decode_s) == pytest.approx((prefill_s, decode_s))
        assert totals.running_s == pytest.approx(2 * now_s)


def test_a_full_cache_lets_go_of_what_came_last_and_computes_it_again_later() -> None:
    engine = engine_with([6, 6], replace(TERMS, kv_capacity_tokens=12.0, prefill_s_per_token=0.25))
    # K is 4, 6, 8, 10 before the passes of 4 + K / 2; a fifth pass would need 14 tokens.
    assert engine.resume(0.0) == 1.0 + 6.0 + 7.0 + 8.0 + 9.0
    assert list(engine.settle(31.0)) == []
    # The first goes on alone with 2 + 4 tokens and two to go; 6 for the other would leave no room for a pass.
    assert engine.resume(31.0) == 31.0 + 6.0 + 6.5
    assert (engine.running, list(engine.waiting), engine.totals_at(31.0).preemptions) == (1, [1], 1)
    assert list(engine.settle(43.5)) == [0]
    # Back with its prompt and four tokens, computed again, and two to go.
    assert engine.resume(43.5) == 43.5 + 6 * 0.25 + 6.0 + 6.5
    assert list(engine.settle(57.5)) == [1]
    totals = engine.totals_at(57.5)
    assert (totals.tokens, totals.prefill_s, totals.recompute_s) == (12, 1.0, 1.5)


class Pausing(Given):
    """The first of the samples waits for its environment once two tokens are left."""

    has_pauses = True

    def pauses(self, lengths: Sequence[int]) -> tuple[list[float], list[int]]:
        return [1.0] + [0.0] * (len(lengths) - 1), [2] + [0] * (len(lengths) - 1)


@pytest.mark.parametrize(
    ("held", "alone_s", "back_s"), [(True, (7.0, 7.5, 8.0, 8.5), 27.5), (False, (5.0, 5.5, 6.0, 6.5), 23.5)]
)
def test_what_waits_for_its_environment_runs_no_pass_and_keeps_its_cache_where_it_is_held(
    held: bool, alone_s: tuple[float, ...], back_s: float
) -> None:
    engine = engine_with([4, 6], replace(TERMS, away_kv_held=held), Pausing)
    # K is 4 and 6 before the two passes of 4 + K / 2 that both run; then the first leaves with 4 tokens.
    assert engine.resume(0.0) == 6.0 + 7.0
    assert (list(engine.settle(13.0)), engine.paused, engine.running) == ([], [0], 1)
    assert engine.resume(13.0) == 13.0 + sum(alone_s)
    # It is back during the second pass of the other one, and goes on after it: K is 10 and 12.
    engine.back.append(0)
    engine.cut_short(22.0)
    assert engine.boundary_s() == back_s
    assert list(engine.settle(back_s)) == []
    assert engine.resume(back_s) == back_s + 9.0 + 10.0
    assert list(engine.settle(back_s + 19.0)) == [0, 1]
    assert engine.totals_at(back_s + 19.0).tokens == 10


@pytest.mark.parametrize(("held", "free", "most_running"), [(True, 0, 1), (False, 1, 2)])
def test_a_sample_outside_its_engine_leaves_its_place_to_others_unless_it_holds_it(
    held: bool, free: int, most_running: int
) -> None:
    terms = replace(TERMS, max_running=2, away_place_held=held)
    fleet = EngineFleet([terms], 2, started([4, 6], Pausing))
    fleet.give(0, (0, 1))
    fleet.wake(0.0)
    fleet.reach_boundary()
    fleet.leave_boundary(0.0)
    fleet.reach_boundary()
    assert (list(fleet.paused), fleet.free_places, fleet.engines[0].most_running) == ([0], free, most_running)
    fleet.come_back(0)
    assert (fleet.free_places, fleet.engines[0].most_running) == (0, 2)


@pytest.mark.parametrize("voided", [True, False])
def test_what_an_update_voids_meanwhile_is_computed_again_on_return(voided: bool) -> None:
    terms = replace(TERMS, away_kv_held=True, away_kv_voided=voided, kv_kept=False, prefill_s_per_token=0.25)
    engine = engine_with([4, 6], terms, Pausing)
    assert engine.resume(0.0) == 2 * 2 * 0.25 + 6.0 + 7.0
    engine.settle(14.0)
    engine.resume(14.0)
    engine.new_version = 1
    engine.back.append(0)
    engine.cut_short(23.0)
    engine.settle(28.5)
    engine.take_weights()
    # The pause, the 6 tokens of the one that runs, and the 4 of the one that is back.
    assert engine.resume(28.5) == 28.5 + 7.0 + 6 * 0.25 + 4 * 0.25 * voided + 9.0 + 10.0


def test_a_request_is_let_in_when_it_and_the_next_pass_just_fit() -> None:
    # 2 + 2 prompts and a token each are 6.
    for capacity_tokens, running in ((5.0, 1), (6.0, 2)):
        engine = engine_with([1, 1], replace(TERMS, kv_capacity_tokens=capacity_tokens))
        engine.resume(0.0)
        assert engine.running == running


def fleet_of(engines: int, places: int, lengths: list[int], terms: EngineTerms = TERMS) -> EngineFleet:
    return EngineFleet([terms] * engines, places, started(lengths))


def test_a_sample_goes_to_the_engine_with_the_fewest_requests() -> None:
    fleet = fleet_of(3, 4, [5] * 8)
    for sample in range(8):
        fleet.give(fleet.least_loaded(), (sample,))
    assert [list(engine.waiting) for engine in fleet.engines] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert (fleet.free_places, fleet.idle_engines) == (4, 3)
    fleet.wake(2.0)
    assert (fleet.next_boundary_s(), fleet.idle_engines) == (2.0, 0)


def test_requests_beyond_an_engines_places_take_none_of_anothers() -> None:
    fleet = fleet_of(2, 2, [5] * 3)
    fleet.give(0, (0, 1, 2))
    assert [fleet.free_places_of(index) for index in (0, 1)] == [-1, 2]
    assert fleet.free_places == 2
    assert fleet.least_loaded() == 1
