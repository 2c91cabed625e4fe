"""A run whose sample files are lost or unreadable has no token counts and no verdict; its page and doctor say why."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rlscope.analysis.checkup import examine
from rlscope.comparison.history import entry_of
from rlscope.pipeline import analyze
from rlscope.reports.card import achieved
from rlscope.reports.text import doctor, verdict
from rlscope.trace.store import open_run
from tests.faults.runs import Recorder, store_run


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize(("recorder", "damage"), [("closed", Path.unlink), ("plain", cut)])
def test_without_its_sample_files_a_run_has_no_token_count_and_no_verdict(
    recorder: Recorder, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = store_run(tmp_path / "run", recorder)
    for path in (folder / "samples").glob("*.parquet"):
        damage(path)
    analysis = analyze(folder, also_ask=())
    rates = analysis.throughput
    assert analysis.run.tokens_trained is None
    assert (rates.achieved_tokens_per_s, rates.steady_tokens_per_s, rates.generated_tokens_per_s) == (None, None, None)
    assert analysis.verdict.bottleneck == entry_of(analysis, "run").bottleneck == "unknown"
    assert "samples" in (analysis.verdict.unknown_reason or "")
    assert achieved(analysis).value == "no data"
    assert verdict.next_step(analysis).startswith("Repair the data")


def test_part_of_the_sample_files_is_no_ground_for_a_verdict_either(tmp_path: Path) -> None:
    folder = store_run(tmp_path / "run", "closed")
    (folder / "samples" / "sampler-0-000002.parquet").unlink()
    analysis = analyze(folder, also_ask=())
    assert (analysis.run.tokens_trained, analysis.verdict.bottleneck) == (None, "unknown")
    assert "rows that were written are lost" in (analysis.verdict.unknown_reason or "")


def test_doctor_names_the_damaged_file_and_advises_no_hook_that_was_there(tmp_path: Path) -> None:
    folder = store_run(tmp_path / "run", "closed")
    for path in (folder / "samples").glob("*.parquet"):
        cut(path)
    with open_run(folder) as run:
        piece = next(each for each in doctor.checks(examine(run)) if each.name == "samples and their lengths")
    assert (piece.status, "run.sample" in piece.how) == ("missing", False)
    assert "samples/sampler-0-000001.parquet was skipped" in piece.found
    assert piece.how.startswith("the hook is there: restore these files")


def test_samples_that_no_hook_recorded_leave_the_verdict(tmp_path: Path) -> None:
    folder = store_run(tmp_path / "run", "plain")
    for path in [*(folder / "samples").glob("*.parquet"), *(folder / "workers").glob("*.json")]:
        if path.suffix == ".parquet":
            path.unlink()
        else:
            path.write_text(path.read_text().replace('"samples"', '"not_a_table"'))
    analysis = analyze(folder, also_ask=())
    assert (analysis.run.tokens_trained, analysis.data_quality.no_verdict) == (None, ())
    assert analysis.verdict.bottleneck != "unknown"
