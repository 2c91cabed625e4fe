"""Runs that are generated to measure speed: they follow the trace format as it is now."""

from pathlib import Path

import pytest

from rlscope.trace.store import open_run

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def test_a_generated_run_has_the_columns_of_the_format(tmp_path: Path) -> None:
    """6,000 samples are the fewest, in thousands, of which some are trained. Writing checks the columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        from generated_run import Shape, generate

        rows = generate(tmp_path / "run", Shape(6_000, 1, gpu_samples=True))
    with open_run(tmp_path / "run") as run:
        assert run.gaps == ()
    assert {table for table, count in rows.items() if not count} == {"reported"}
