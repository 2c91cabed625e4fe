"""The two workers that one AReaL process is: the trainer, and the rollouts that it drives."""

import sys
import time
from importlib import metadata
from typing import Any

from rlscope_otel import exits, settings
from rlscope_otel.errors import SetupError
from rlscope_otel.faults import Faults
from rlscope_otel.recorder import Run
from rlscope_otel.start import start_run

# AReaL gives the executor of its evaluations a cap that is none.
_NO_CAP = 10**9


class Workers:
    """The runs of this process; each is started when it is first needed."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.rollout_gpus = 0
        self.version = 0
        """The last version that AReaL set."""
        self.single_controller = False
        self.batch: tuple[int | None, int | None] = (None, None)
        """Samples and tokens of the batch that this process took last, until a step takes it."""
        self._trainer: Run | None = None
        self._rollout: Run | None = None

    @property
    def trainer(self) -> Run:
        """The trainer's run: the one that the script has started, else one from the environment."""
        if self._trainer is None or not self._trainer.active:
            runs = (run for run in exits.live_runs() if isinstance(run, Run) and run.active)
            live = [run for run in runs if run is not self._rollout]
            self._trainer = live[0] if live else self._started("trainer", None, {})
        return self._trainer

    @property
    def rollout(self) -> Run | None:
        """The rollouts' run; None before there is an executor."""
        return self._rollout if self._rollout is not None and self._rollout.active else None

    def take_batch(self) -> tuple[int | None, int | None]:
        """Samples and tokens of the next step; None in a rank that took no batch itself."""
        batch, self.batch = self.batch, (None, None)
        return batch

    def begin_rollout(self, config: Any) -> None:
        """An executor begins: its rollouts are a worker, and what it is set to is the run's."""
        environ = sys.modules.get("areal.utils.environ")
        self.single_controller = environ is not None and bool(environ.is_single_controller())
        if self.rollout is None and config.max_head_offpolicyness < _NO_CAP:
            role = "sampler" if self.rollout_gpus else "controller"
            self._rollout = self._started(role, f"{self.trainer.worker_id}.rollout", _settings(config))

    def _started(self, role: str, worker_id: str | None, config: dict[str, Any]) -> Run:
        gpus = None if role == "trainer" else self.rollout_gpus
        try:
            name = settings.worker_id_of(worker_id, role)
            version = _areal_version()
            return start_run(
                role=role, worker_id=name, gpu_count=gpus, framework="areal", framework_version=version, config=config
            )
        except SetupError as error:
            self.faults.note("start", error)
            return start_run(run_dir="")


WORKERS = Workers()


def now_ns() -> int:
    """The time of the rollouts' run, or the wall clock's before there is one."""
    run = WORKERS.rollout
    return time.time_ns() if run is None else run.now_ns()


def _settings(config: Any) -> dict[str, Any]:
    return {
        "framework": "areal",
        "staleness_policy": "admission",
        "max_staleness": config.max_head_offpolicyness,
        "areal_consumer_batch_groups": config.consumer_batch_size,
        "areal_max_concurrent_groups": config.max_concurrent_rollouts or config.consumer_batch_size,
    }


def _areal_version() -> str | None:
    try:
        return metadata.version("areal")
    except metadata.PackageNotFoundError:
        return None
