"""The simulator and the closed forms agree where both hold. Six seeds give each mean its Monte Carlo error."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rlscope.model.analytic.steady_state import SteadyState, steady_states, strict_cap
from rlscope.model.lengths import LengthLaw
from rlscope.model.simulate import Simulated, simulate
from rlscope.model.system import Admission, Engine, Layout, System, Trainer, WeightUpdateCost, Workload
from tests.model.golden_system import Affine, load_ratio
from tests.model.simulated_systems import with_admission, with_engine, with_workload

LENGTHS = LengthLaw.lognormal(100, 0.6, max_output_tokens=500)
SYSTEM = System(
    Workload(LENGTHS, prompt_tokens=20.0, group_size=1, samples_per_step=48),
    Engine(1, Affine(0.01, 0.0), max_running=1000),
    Trainer(20_000.0, seen_gpus=1),
)
LAYOUT = Layout(trainer_gpus=1, sampler_gpus=4, max_running=24)
CONCURRENCY_STEPS = 4 * 24 / 48
"""C / B: samples that run, over samples of a step."""
COSTLY = with_engine(SYSTEM, curve=Affine(0.01, 0.0001, 1e-6), prefill_tokens_per_s=20_000.0)


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over runs of different seeds, and four of its standard errors."""

    mean: float
    four_errors: float

    def agrees_with(self, expected: float, bias_ratio: float = 0.0) -> bool:
        """bias_ratio: what the closed form leaves out, as the test says."""
        return abs(self.mean - expected) <= self.four_errors + bias_ratio * abs(expected) + 1e-12


def runs_of(system: System, steps: int = 150) -> list[Simulated]:
    return [simulate(system, LAYOUT, steps=steps, seed=seed) for seed in range(6)]


def measure(runs: list[Simulated], quantity: Callable[[Simulated], float]) -> Measured:
    values = np.array([quantity(run) for run in runs])
    return Measured(float(values.mean()), 4 * float(values.std(ddof=1)) / np.sqrt(len(values)))


def state_of(system: System) -> SteadyState:
    return steady_states(system, (LAYOUT,))[0]


def with_trainer(system: System, tokens_per_s: float) -> System:
    return replace(system, trainer=Trainer(tokens_per_s, seen_gpus=1))


def test_a_constant_latency_and_an_unlimited_queue_give_the_textbook_means() -> None:
    runs = runs_of(SYSTEM)
    step_s = 48 * LENGTHS.mean_tokens * 0.01 / 96
    load = 48 * LENGTHS.mean_tokens / 20_000.0 / step_s
    assert measure(runs, lambda run: run.step_s).agrees_with(step_s)
    assert measure(runs, lambda run: run.trainer_idle_ratio).agrees_with(1 - load, 0.002)
    # Little's law for the samples, its length-biased form for the tokens; a half of it for a random token of a sample.
    # A token that is the last of its sample is not counted as waiting for itself: half a token in a hundred.
    assert measure(runs, lambda run: run.staleness.samples.mean).agrees_with(CONCURRENCY_STEPS + load, 0.01)
    in_flight = CONCURRENCY_STEPS / 2 * LENGTHS.second_moment / LENGTHS.mean_tokens**2
    assert measure(runs, lambda run: run.staleness.tokens.mean).agrees_with(in_flight + load, 0.01)


@pytest.mark.parametrize(
    ("admission", "trainer_tokens_per_s"),
    [
        (Admission(), 20_000.0),
        (Admission(queue_capacity_samples=96), 5_000.0),
        (Admission(max_in_flight_samples=200), 5_000.0),
        (Admission(max_staleness=4), 5_000.0),
        (Admission(max_staleness=4, staleness_policy="publication_waits"), 5_000.0),
        (Admission(queue_capacity_samples=96, queue_policy="drop_oldest"), 7_000.0),
        (Admission(max_staleness=3, staleness_policy="drop"), 7_000.0),
    ],
)
def test_the_age_of_samples_that_decides_what_to_simulate_is_within_a_version(
    admission: Admission, trainer_tokens_per_s: float
) -> None:
    system = replace(with_trainer(SYSTEM, trainer_tokens_per_s), admission=admission)
    run, state = simulate(system, LAYOUT, steps=100, seed=1), state_of(system)
    p95 = math.ceil(min(state.sample_p95, strict_cap(system)))
    assert p95 == pytest.approx(run.staleness.samples.percentile(0.95), abs=1.0)


UPDATED = replace(with_workload(COSTLY, group_size=8), update=WeightUpdateCost(0.1, 0.1, 0.2, kv_kept=False))
FILTERED = with_workload(SYSTEM, group_size=4, kept_ratio=0.7)


@pytest.mark.parametrize("system", [UPDATED, FILTERED], ids=["pauses and cache computed again", "filtered groups"])
def test_costs_of_samplers_lengthen_the_step_as_the_balance_says(system: System) -> None:
    runs, state = runs_of(system), state_of(system)
    assert measure(runs, lambda run: run.step_s).agrees_with(state.step_s, 0.002)
    assert measure(runs, lambda run: run.mean_running).agrees_with(state.running)


def test_a_queue_that_drops_its_oldest_is_as_old_as_published() -> None:
    system = with_admission(with_trainer(SYSTEM, 7_000.0), queue_capacity_samples=96, queue_policy="drop_oldest")
    runs, state = runs_of(system), state_of(system)
    load = load_ratio(system, LAYOUT)
    assert load > 1.3
    assert measure(runs, lambda run: run.step_s).agrees_with(state.train_s, 0.001)
    # Two batches fit. 2 %: batches are whole, so the last sample of one waits for no other.
    published = CONCURRENCY_STEPS / load + (2 * 2 + load - 1) / (2 * load)
    assert measure(runs, lambda run: run.staleness.samples.mean).agrees_with(published, 0.02)
    assert measure(runs, lambda run: run.dropped_ratio).agrees_with(state.dropped_ratio, 0.02)


def test_prompts_that_join_together_share_a_pass_as_the_closed_form_says() -> None:
    # Some three of 24 requests end in every pass of 10 ms, and the ones that follow wait 5 ms together.
    short = with_workload(with_trainer(SYSTEM, 1e9), lengths=LengthLaw.lognormal(8, 0.6, max_output_tokens=40))
    system = with_engine(short, prefill_pass_s=0.005)
    expected = state_of(system).trained_tokens_per_s
    assert measure(runs_of(system), lambda run: run.trained_tokens_per_s).agrees_with(expected, bias_ratio=0.01)
    alone = with_engine(short, prefill_tokens_per_s=20.0 / 0.005)
    assert expected > 1.3 * state_of(alone).trained_tokens_per_s


def test_batches_of_one_version_are_taken_one_by_one_and_published_once() -> None:
    """The rate is that of a run that publishes every batch, and staleness counts versions of so many of them."""
    each = replace(with_trainer(SYSTEM, 5_000.0), admission=Admission(96))
    together = with_workload(each, samples_per_step=2 * 48, batches_per_version=2)
    alone, versions = runs_of(each), runs_of(together, steps=80)
    rate = measure(alone, lambda run: run.trained_tokens_per_s).mean
    assert measure(versions, lambda run: run.trained_tokens_per_s).agrees_with(rate, 0.01)
    ages = measure(alone, lambda run: run.staleness.tokens.mean).mean
    assert measure(versions, lambda run: run.staleness.tokens.mean).agrees_with(ages / 2, 0.03)
