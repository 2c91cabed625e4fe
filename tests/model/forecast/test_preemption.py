"""What a KV cache that runs over costs: as a run counts it, and as the event simulator has it."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.analytic.engine_time import sampling_of
from rlscope.model.forecast.layouts import Preemption, preemption_seen, preemption_simulated
from rlscope.model.forecast.predict import predict
from rlscope.model.observed import Observed, PreemptionCounts
from rlscope.model.simulate import Simulated, simulate
from rlscope.model.system import Layout, System
from tests.model.known_run import TODAY, TRUTH, calibration_of, observed
from tests.model.simulated_systems import ENGINE, LAYOUT, STARVED, with_admission

PREFILLING = replace(TRUTH.engine, prefill_tokens_per_s=1000.0)
CRAMPED = replace(STARVED, engine=replace(ENGINE, kv_capacity_tokens=270))
PROMPT_TOKENS = 512_000
"""Of the 10,240 samples of the run, 50 each."""


def run(preemptions: int, recomputed_tokens: int | None, computed_tokens: int = PROMPT_TOKENS) -> Observed:
    """So many prompt tokens computed for the first time, and those computed again."""
    seen = observed()
    tokens = np.zeros_like(seen.passes.prefill_tokens)
    tokens[0] = computed_tokens + (recomputed_tokens or 0)
    passes = replace(seen.passes, prefill_tokens=tokens)
    return replace(seen, passes=passes, preemption_counts=PreemptionCounts(preemptions, recomputed_tokens))


def simulated(system: System, layout: Layout = LAYOUT) -> Simulated:
    return simulate(system, layout, steps=20, seed=1)


def test_a_run_lost_what_it_counted_at_the_speed_of_its_prefill() -> None:
    lost = run(preemptions=5_120, recomputed_tokens=60_000)  # 10,240 samples, six engines
    assert preemption_seen(lost, PREFILLING) == Preemption(0.5, pytest.approx(60_000 / 1000.0 / (6 * lost.seconds)))


def test_where_a_cache_spares_most_of_the_prompts_a_token_computed_costs_as_much_more() -> None:
    # 128,000 tokens took the 512 seconds in which the engine's rate computes 512,000.
    lost = run(preemptions=5_120, recomputed_tokens=60_000, computed_tokens=128_000)
    assert preemption_seen(lost, PREFILLING) == Preemption(0.5, pytest.approx(4 * 60.0 / (6 * lost.seconds)))


def test_what_was_not_counted_or_not_told_apart_is_not_known() -> None:
    lost = run(preemptions=5_120, recomputed_tokens=60_000)
    assert preemption_seen(observed(), PREFILLING) is None
    assert preemption_seen(replace(lost, kv_kept=False), PREFILLING) == Preemption(0.5, None)
    assert preemption_seen(lost, TRUTH.engine) == Preemption(0.5, None)  # prefill was not seen
    assert preemption_seen(run(5_120, None), PREFILLING) == Preemption(0.5, None)
    assert preemption_seen(run(5_120, 60_000, computed_tokens=0), PREFILLING) == Preemption(0.5, None)
    assert preemption_seen(run(0, 0), TRUTH.engine) == Preemption(0.0, 0.0)


def test_a_simulation_loses_what_it_puts_back() -> None:
    full = simulated(CRAMPED)
    lost, totals = preemption_simulated(full, CRAMPED), full.engine_totals
    samples = totals.tokens / CRAMPED.workload.lengths.mean_tokens
    assert totals.preemptions and lost.preemptions_per_sample == pytest.approx(totals.preemptions / samples)
    assert lost.recompute_ratio == pytest.approx(totals.recompute_s / full.engine_s)
    assert preemption_simulated(simulated(STARVED), STARVED) == Preemption(0.0, 0.0)


def test_where_updates_have_the_cache_computed_again_too_a_simulation_only_counts() -> None:
    updates = replace(CRAMPED.update, kv_kept=False)
    lost = preemption_simulated(simulated(replace(CRAMPED, update=updates)), replace(CRAMPED, update=updates))
    assert lost.preemptions_per_sample > 0.0 and lost.recompute_ratio is None


def test_more_requests_than_the_cache_holds_are_put_back_and_fewer_are_not() -> None:
    # The 64 requests of today hold some 10,000 tokens.
    found = calibration_of(replace(observed(), kv_capacity_tokens=12_000))
    few, many = (predict(found, replace(TODAY, max_running=running)).preemption for running in (32, 128))
    assert few == Preemption(0.0, 0.0)
    assert many.preemptions_per_sample > 0.5 and many.recompute_ratio is None  # prefill was not seen


@pytest.mark.parametrize("capacity_tokens", [400, 600, 1200])
def test_as_many_requests_as_the_cache_holds_safely_preempt_a_few_samples_and_30_percent_more_preempt_many(
    capacity_tokens: int,
) -> None:
    engine = replace(ENGINE, kv_capacity_tokens=capacity_tokens, max_running=200)
    system = replace(with_admission(STARVED, queue_capacity_samples=48), engine=engine)
    safe = sampling_of(system).kv_running

    def preempted_ratio(running: float) -> float:
        totals = simulate(system, Layout(6, 2, int(running)), steps=120, seed=1).engine_totals
        return totals.preemptions / (totals.tokens / system.workload.lengths.mean_tokens)

    assert 0.0 < preempted_ratio(safe) < 0.03 < preempted_ratio(1.3 * safe)
