"""Runs that train, evaluate or take samples in a manner of their own are replayed as they went."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.token_simulator import Evaluations, Layout, Limits, World, simulate_world
from benchmarks.token_simulator.cases import PLAIN
from rlscope.model.forecast.result import ModelResult
from rlscope.pipeline import analyze
from tests.nightly import nightly

TIGHT = Limits(max_in_flight_samples=192)
"""Two optimizer steps of 96 samples."""


@pytest.mark.parametrize(
    ("world", "batches_per_version"),
    [
        nightly(replace(PLAIN, limits=TIGHT, training=replace(PLAIN.training, steps_per_version=4)), 4),
        nightly(replace(PLAIN, limits=TIGHT, training=replace(PLAIN.training, micro_batch_samples=16)), 6),
        (replace(PLAIN, evaluations=Evaluations(4, 6.0, requests=8)), 1),
    ],
    ids=["several steps a version", "micro-batches as they come", "engines that evaluate"],
)
def test_a_run_is_replayed_as_it_went(world: World, batches_per_version: int, tmp_path: Path):
    simulate_world(world, Layout(4, 4, 32), 40, 0, tmp_path / "run")
    model = analyze(tmp_path / "run", also_ask=()).model
    assert isinstance(model, ModelResult)
    assert model.calibration.system.workload.batches_per_version == batches_per_version
    assert model.replay.rate_misfit_ratio == pytest.approx(0.0, abs=0.05)
    assert not model.replay.is_rough
