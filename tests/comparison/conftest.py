import pytest

import rlscope
from tests.kept import TRACES as TRACES
from tests.kept import analysis_of
from tests.reports.conftest import browser as browser


@pytest.fixture(scope="package")
def before() -> rlscope.Analysis:
    """Eight slots: the trainer waits for samples."""
    return analysis_of("starved_trainer")


@pytest.fixture(scope="package")
def after() -> rlscope.Analysis:
    """The same with the first action carried out: 32 slots."""
    return analysis_of("starved_trainer_after")


@pytest.fixture(scope="package")
def pair(before: rlscope.Analysis, after: rlscope.Analysis) -> rlscope.Comparison:
    return rlscope.compare(before, after)
