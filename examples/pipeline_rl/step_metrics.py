"""The metrics that verl logs, of this trainer: seconds of each phase of a step, written by verl's own Tracking.

What they say is compared with what the hooks record of the same steps: `tests/pipelines/frameworks/test_imported.py`.
"""

import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pprint import pprint
from typing import Any


class StepMetrics:
    """Adds up what the phases of a step take, and logs it at the step's end; without backends it does neither."""

    def __init__(self, backends: str | None, experiment: str, config: Mapping[str, object]) -> None:
        self._seconds: Counter[str] = Counter()
        self._tracking: Any = None
        if backends:
            from verl.utils.tracking import Tracking

            # As verl's entry point prints it.
            pprint(dict(config), width=60)
            self._tracking = Tracking("pipeline_rl", experiment, backends.split(","), dict(config))
        self._start_s = time.perf_counter()

    @contextmanager
    def timed(self, name: str) -> Generator[None]:
        """Count the block as part of this phase."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[f"timing_s/{name}"] += time.perf_counter() - start_s

    def log(self, step: int, tokens: int, gpus: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step and begin the next one."""
        now_s = time.perf_counter()
        step_s, self._start_s = now_s - self._start_s, now_s
        if self._tracking is not None:
            rates = {"perf/total_num_tokens": tokens, "perf/time_per_step": step_s}
            rates["perf/throughput"] = tokens / (step_s * gpus)
            self._tracking.log({**self._seconds, "timing_s/step": step_s, **rates, **values}, step)
        self._seconds.clear()
