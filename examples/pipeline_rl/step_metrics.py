"""What verl and slime log of a trainer, of this one: seconds of each phase, by verl's Tracking or slime's timers.

What they say is compared with what the hooks record of the same steps: `test_imported.py` in `tests/pipelines`.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pprint import pprint
from typing import Any, Final

LOG: Final = logging.getLogger(__name__)


class StepMetrics:
    """Adds up what the phases of a step take, and logs it at the step's end; without backends it does neither."""

    def __init__(
        self, backends: str | None, experiment: str, config: Mapping[str, object], slime: Mapping[str, object] | None
    ) -> None:
        self._seconds: Counter[str] = Counter()
        self._tracking: Any = None
        self._slime = SlimeLog(slime) if slime is not None else None
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
        if self._slime is not None:
            self._slime.begin(name)
        try:
            yield
        finally:
            if self._slime is not None:
                self._slime.finish(name)
            self._seconds[f"timing_s/{name}"] += time.perf_counter() - start_s

    def log(self, step: int, tokens: int, gpus: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a step and begin the next one."""
        now_s = time.perf_counter()
        step_s, self._start_s = now_s - self._start_s, now_s
        if self._tracking is not None:
            rates = {"perf/total_num_tokens": tokens, "perf/time_per_step": step_s}
            rates["perf/throughput"] = tokens / (step_s * gpus)
            self._tracking.log({**self._seconds, "timing_s/step": step_s, **rates, **values}, step)
        if self._slime is not None:
            self._slime.log(step - 1, tokens)
        self._seconds.clear()


class SlimeLog:
    """The console of slime's trainer: `train_wait` runs whenever nothing is trained, and other timers lie inside it."""

    INSIDE_WAIT: Final = {"update_weights": "update_weights", "save_checkpoint": "save_model"}

    def __init__(self, settings: Mapping[str, object]) -> None:
        # As slime's `configure_logger` does.
        form = "[%(asctime)s] %(filename)s:%(lineno)d - %(message)s"
        logging.basicConfig(level=logging.INFO, format=form, datefmt="%Y-%m-%d %H:%M:%S", force=True)
        for name, value in settings.items():
            LOG.info(f"  {name} {'.' * (40 - len(name))} {value}")
        self._timer = slime_timer()
        self._timer.start("train_wait")

    def begin(self, name: str) -> None:
        """A phase begins."""
        if name == "update_actor":
            self._timer.end("train_wait")
            self._timer.start("train")
            self._timer.start("actor_train")
        elif name in self.INSIDE_WAIT:
            self._timer.start(self.INSIDE_WAIT[name])

    def finish(self, name: str) -> None:
        """A phase ended."""
        if name == "update_actor":
            self._timer.end("actor_train")
            self._timer.end("train")
            self._timer.start("train_wait")
        elif name in self.INSIDE_WAIT:
            self._timer.end(self.INSIDE_WAIT[name])

    def log(self, rollout: int, tokens: int) -> None:
        """Print the times of the rollout's training, and begin to count those of the next."""
        times = {f"perf/{name}_time": seconds for name, seconds in self._timer.log_dict().items()}
        self._timer.reset()
        times["perf/actor_train_tok_per_s"] = tokens / times["perf/actor_train_time"]
        LOG.info(f"perf {rollout}: {times}")


def slime_timer() -> Any:  # noqa: ANN401
    """slime's own timers where slime is installed, which no package index has; else ones that print the same lines."""
    try:
        from slime.observability.timer import Timer  # pyright: ignore[reportMissingImports]
    except ImportError:
        return StandInTimer()
    import torch.distributed as dist

    if not dist.is_initialized():
        # Without ranks they count and print nothing.
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())  # pyright: ignore[reportPrivateImportUsage]
    return Timer()


class StandInTimer:
    """Named timers with the interface, and the lines, of slime's."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started_s: dict[str, float] = {}

    def start(self, name: str) -> None:
        """Start one."""
        self._started_s[name] = time.time()
        LOG.info(f"Timer {name} start")

    def end(self, name: str) -> None:
        """End one, and add its seconds to those of its name."""
        elapsed_s = time.time() - self._started_s.pop(name)
        self._seconds[name] += elapsed_s
        LOG.info(f"Timer {name} end (elapsed: {elapsed_s:.1f}s)")

    def log_dict(self) -> Mapping[str, float]:
        """Seconds by name."""
        return self._seconds

    def reset(self) -> None:
        """Begin again."""
        self._seconds.clear()
