"""The watch on the model's accuracy: what counts as worse, and that every figure is kept and explained."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    """The script, which finds the other benchmarks beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        import accuracy

        patch.delitem(sys.modules, "accuracy")
        return accuracy


@pytest.mark.parametrize(
    ("kept", "found", "is_worse"),
    [
        (0.050, 0.060, False),
        (0.050, 0.0601, True),
        (0.050, 0.001, False),
        (0.001, 0.003, False),  # three times as large, and still a fifth of a percent
        (0.001, 0.0031, True),
        (1, 2, False),  # one system more
        (1, 3, True),
        (10, 12, False),
    ],
)
def test_an_error_that_has_grown_by_more_than_a_fifth_is_worse(
    accuracy: ModuleType, kept: float, found: float, is_worse: bool
) -> None:
    assert bool(accuracy.worse({"regret": found}, {"regret": kept})) is is_worse


def test_a_figure_that_is_not_kept_is_named(accuracy: ModuleType) -> None:
    assert accuracy.worse({"new_error": 0.1}, {"regret": 0.0}) == ["new_error: 0.1, not kept"]


def test_every_kept_figure_is_explained(accuracy: ModuleType) -> None:
    kept = json.loads((SCRIPTS / "accuracy.json").read_text())
    assert len(kept) >= 11
    assert [name for name in kept if name not in accuracy.__doc__] == []
