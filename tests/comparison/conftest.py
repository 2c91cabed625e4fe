from pathlib import Path

import pytest

import rlscope
from tests.reports.conftest import browser as browser

TRACES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="package")
def before() -> rlscope.Analysis:
    """Eight slots: the trainer waits for samples."""
    return rlscope.analyze(TRACES / "starved_trainer")


@pytest.fixture(scope="package")
def after() -> rlscope.Analysis:
    """The same with the first action carried out: 32 slots."""
    return rlscope.analyze(TRACES / "starved_trainer_after")


@pytest.fixture(scope="package")
def pair(before: rlscope.Analysis, after: rlscope.Analysis) -> rlscope.Comparison:
    return rlscope.compare(before, after)
