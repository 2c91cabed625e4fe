"""What a run shows of samples that wait for their environment: whether their KV stays in the cache."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.calibration import calibrate
from rlscope.model.observed import Observed
from rlscope.model.system import Admission
from tests.model.known_run import LENGTHS, TODAY, observed

AWAY = 12.0
"""Samples of an engine."""


def holding(of_away: float) -> Observed:
    """A run whose caches hold what runs and a part of what is outside."""
    run = observed(batches=(48,))
    running_tokens = 50.0 + LENGTHS.second_moment / LENGTHS.mean_tokens / 2.0
    away_tokens = 50.0 + LENGTHS.mean_tokens / 2.0
    resident = run.passes.running * running_tokens + of_away * AWAY * away_tokens
    return replace(run, passes=replace(run.passes, kv_tokens=resident), environment_samples=AWAY * TODAY.sampler_gpus)


@pytest.mark.parametrize(("of_away", "is_held"), [(1.0, True), (0.501, True), (0.499, False), (0.0, False)])
def test_kv_is_held_where_the_caches_hold_at_least_half_of_it(of_away: float, is_held: bool):
    workload = calibrate(holding(of_away), Admission(), None, np.random.default_rng(0)).system.workload
    assert workload.environment_kv_held is is_held


def test_without_a_recorded_cache_or_a_wait_nothing_is_held():
    run = holding(1.0)
    unknown = replace(run, passes=replace(run.passes, kv_tokens=np.full(run.passes.running.size, np.nan)))
    for each in (unknown, replace(run, environment_samples=0.0)):
        workload = calibrate(each, Admission(), None, np.random.default_rng(0)).system.workload
        assert not workload.environment_kv_held
