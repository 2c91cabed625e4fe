"""Rules, and runs to hold to them, as tests need them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlscope.alerts.types import Rule, RuleWindow
from rlscope.analysis.result import Severity
from tests.trace_folder import Row, activity, train_row, worker, write_run

S = 1_000_000_000


def rule(name: str, metric: str, above: float, window: RuleWindow, severity: Severity = "warning", **more: Any) -> Rule:
    """A hint that fires above a value, with any evidence."""
    hint = Rule(name, metric, "above", above, window, min_evidence=1, labels={"severity": severity})
    return replace(hint, **more)


def run_of(
    folder: Path,
    *waits_s: tuple[int, int],
    steps_s: Sequence[int] = (),
    stop_s: int = 60,
    gpus: int = 2,
    workers: Sequence[Row] = (),
) -> Path:
    """A run of a trainer that waits for samples from and to these seconds; its steps of one second end at those."""
    return write_run(
        folder,
        [worker("t0", "trainer", 0, stop_s * S, gpu_count=gpus), *workers],
        activities=[activity("t0", start * S, end * S, "wait", "samples") for start, end in waits_s],
        train_steps=[train_row("t0", (end - 1) * S, end * S, step) for step, end in enumerate(steps_s, start=1)],
    )
