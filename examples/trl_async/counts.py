"""What the example counts itself, without the hooks; the tests compare it with what rlscope finds."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Counts:
    """Everything is counted where it happens: in the reward, in the transfer, in TRL's own log."""

    steps: int = 0
    weight_syncs: int = 0
    tokens_generated: int = 0
    """In responses that were scored."""
    logged: list[dict[str, float | None]] = field(default_factory=list[dict[str, float | None]])
    """TRL's log, one entry a step."""
    train_s: float = 0.0

    def log(self, logs: Mapping[str, Any]) -> None:
        """Keep one entry of TRL's log."""
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        self.logged.append({name: value if math.isfinite(value) else None for name, value in numbers.items()})

    def write(self, run_dir: Path) -> None:
        """Put them beside the trace."""
        (run_dir / "pipeline_summary.json").write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
