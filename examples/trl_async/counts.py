"""What the example counts itself, without the hooks; the tests compare it with what rlscope finds."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LOGGED = (
    "loss",
    "grad_norm",
    "reward",
    "kl",
    "sample/staleness_mean",
    "sample/staleness_max",
    "sample/dropped_stale_total",
    "batch/samples_per_step",
    "batch/trained_tokens_per_step",
    "batch/forwarded_tokens_per_step",
    "perf/step_s",
)
"""What of TRL's log is kept."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A response as it was scored."""

    admitted_version: int
    tokens: int


@dataclass(slots=True)
class Counts:
    """Everything is counted where it happens: in the reward, in the transfer, in TRL's own log."""

    steps: int = 0
    weight_syncs: int = 0
    tokens_generated: int = 0
    """In responses that were scored."""
    scored: dict[str, Scored] = field(default_factory=dict[str, Scored])
    """By sample; only where the example's own worker scores."""
    scored_group_tokens: list[int] = field(default_factory=list[int])
    """By group, in the order of scoring; only where TRL's worker scores."""
    logged: list[dict[str, float | None]] = field(default_factory=list[dict[str, float | None]])
    """TRL's log, one entry a step."""
    train_s: float = 0.0

    def log(self, logs: Mapping[str, Any]) -> None:
        """Keep one entry of TRL's log."""
        values = {name: logs.get(name) for name in LOGGED}
        self.logged.append(
            {name: None if value is None or math.isnan(value) else float(value) for name, value in values.items()}
        )

    def total(self, name: str) -> float:
        """A logged value, summed over all steps."""
        return sum(entry[name] or 0.0 for entry in self.logged)

    def write(self, run_dir: Path) -> None:
        """Put them beside the trace, with the totals under the names that every pipeline uses."""
        summary = {
            "samples_trained": round(self.total("batch/samples_per_step")),
            "response_tokens_trained": round(self.total("batch/trained_tokens_per_step")),
            "samples_dropped_stale": round(self.total("sample/dropped_stale_total")),
            **asdict(self),
        }
        (run_dir / "pipeline_summary.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")
