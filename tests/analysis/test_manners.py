"""Runs whose engines evaluate, or whose publications wait for some samples only, are replayed as they went."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.token_simulator import Evaluations, Layout, Limits, simulate_world, true_tokens_per_s
from benchmarks.token_simulator.cases import PLAIN
from rlscope.model.forecast.predict import simulated_run
from rlscope.model.forecast.result import ModelResult
from rlscope.model.system import Layout as ModelLayout
from rlscope.pipeline import analyze
from tests.model.few_draws import few_draws


def test_a_run_whose_engines_evaluate_is_replayed_as_it_went(tmp_path: Path):
    world = replace(PLAIN, evaluations=Evaluations(4, 6.0, requests=8))
    simulate_world(world, Layout(4, 4, 32), 40, 0, tmp_path / "run")
    with few_draws(steps=60):
        model = analyze(tmp_path / "run", also_ask=()).model
    assert isinstance(model, ModelResult)
    assert model.calibration.system.workload.batches_per_version == 1
    assert model.replay.rate_misfit_ratio == pytest.approx(0.0, abs=0.05)
    assert not model.replay.is_rough


BEHIND = replace(PLAIN.training, tokens_per_gpu_s=0.4 * PLAIN.training.tokens_per_gpu_s)
"""Trainers that are the slower side, so that the queue is deep."""
OTHER = ModelLayout(5, 3, 32)


def test_that_publications_wait_for_running_samples_only_is_read_from_the_run(tmp_path: Path):
    limits = Limits(384, max_staleness=2, staleness_policy="publication_waits", waits_for_queued=False)
    world = replace(PLAIN, limits=limits, training=BEHIND)
    simulate_world(world, Layout(4, 4, 32), 40, 0, tmp_path / "run")
    model = analyze(tmp_path / "run", also_ask=()).model
    assert isinstance(model, ModelResult)
    assert model.replay.scheduling.admission.waits_for_queued is False
    assert model.replay.rate_misfit_ratio == pytest.approx(0.0, abs=0.05)
    # A split that the run did not have, and the same read the other way round.
    system = model.calibration.system
    misread = replace(system, admission=replace(system.admission, waits_for_queued=True))
    runs = [simulated_run(replace(model.calibration, system=each), OTHER) for each in (system, misread)]
    true = true_tokens_per_s(world, Layout(5, 3, 32), 60)
    rates = [each.trained_tokens_per_s / true for each in runs if each is not None]
    assert rates[0] == pytest.approx(1.0, abs=0.05)
    assert rates[1] > 1.15 or rates[1] < 0.85
