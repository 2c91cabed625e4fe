"""A recorded run of `examples.trl_async`, what TRL logged of it itself, and what its tests ask of both."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rlscope import api
from rlscope.analysis.result import AnalysisResult
from tests.pipelines.processes import Recorded, run_module

AGREE_RATIO = 0.03
"""Of the time that the steps took: what docs/importers.md promises of each state of TRL's trainer,"""
AGREE_S_PER_STEP = 0.005
"""and so much a step: TRL's timer of a step and the hook's begin and end a few milliseconds apart."""
_STATES = {
    "waiting_for_samples": ("waiting_for_samples",),
    "train": ("train",),
    "publishing_weights": ("publishing_weights", "transferring_weights"),
}
"""By the state of an imported run, the states of a recorded one: TRL's log does not tell the transfer apart."""


class TrlRecorded(Recorded):
    COUNTED = "pipeline_summary.json"

    @property
    def logs(self) -> Path:
        """What TRL wrote itself."""
        return self.run_dir / "trl_logs"

    def logged(self, name: str) -> list[float]:
        return [entry[name] for entry in self.counted["logged"]]

    def kept(self) -> list[dict[str, Any]]:
        """What the trainer took and did not drop, in the order of taking, with the version when it was taken."""
        published_ns = [row["end_ns"] for row in self.updates("publish")]
        kept = [row for row in self.rows("deliveries") if row["outcome"] != "dropped_stale"]
        for row in kept:
            row["taken_version"] = sum(end_ns <= row["taken_ns"] for end_ns in published_ns)
        return sorted(kept, key=lambda row: row["taken_ns"])

    def kept_by_log(self) -> list[list[dict[str, Any]]]:
        """The same by the entry of TRL's log that speaks of them: two batches are taken before the first step."""
        batch = self.config["samples_per_step"]
        rest = iter(self.kept())
        sizes = [2 * batch, *[batch] * (self.counted["steps"] - 1)]
        return [list(islice(rest, size)) for size in sizes]


def trainer_seconds(result: AnalysisResult) -> dict[str, float]:
    """Seconds of the trainer in each of the states that TRL's log tells."""
    own = [state for state in result.ledger.states if state.role == "trainer"]
    return {name: sum(state.gpu_s for state in own if state.state in same) for name, same in _STATES.items()}


def assert_agrees(recorded: AnalysisResult, log: Path) -> None:
    """A log that TRL left says the same of each state of the trainer as the hooks."""
    imported = api.analyze(log)
    steps_s = sum(state.gpu_s for state in imported.ledger.states if state.role == "trainer")
    expected, found = trainer_seconds(recorded), trainer_seconds(imported)
    most_s = AGREE_RATIO * steps_s + AGREE_S_PER_STEP * recorded.run.steps
    for state in _STATES:
        assert found[state] == pytest.approx(expected[state], abs=most_s), (log.name, state)


def record(run_dir: Path, *flags: str) -> TrlRecorded:
    """Run the example in a process of its own; TRL logs besides."""
    run_module("examples.trl_async", run_dir, "--report-to", "tensorboard", *flags)
    return TrlRecorded(run_dir)
