"""prime-rl: `rlscope_otel.integrations.prime_rl.install()` before its orchestrator and its trainer set up monitors.

prime-rl passes everything it logs to its monitors. After its `monitors.setup`, this adds a monitor, and an observer to
the weight watcher. Does nothing without RLSCOPE_RUN_DIR. Recorded:

- orchestrator (a controller): each trace of a training episode is one sample, in the group of its episode. Its tokens
  all carry the version at which the group was opened (`PolicySpan.start`, `version_source` admission). The end of the
  span shows the policy version when the episode ended, not which tokens it sampled, and prime-rl raises the version
  before the engines have loaded it: so this staleness is an upper bound. Shipped episodes are deliveries of their step;
  failed traces are filtered. Weights are applied from `on_version_pending` to `on_new_version`. Holding a batch for the
  trainer is a wait for the staleness cap.
- trainer, rank 0, for the GPUs in RLSCOPE_GPU_COUNT: the durations that it logs after each step, placed back to back
  before the time of the log: waiting for the batch, loading, training, broadcasting, saving. A slow monitor before this
  one shifts all of them by its own time.
- run.json: `max_off_policy_steps` as `max_staleness`, policy `drop`.

prime-rl's step N trains the weights of version N - 1; a step's number here is prime-rl's.

Not recorded: engines (use the vLLM plug-in, with RLSCOPE_SAMPLES=framework), evaluations, samples that the sink
dropped as stale (prime-rl logs only their number), ranks other than 0.

NOT run: prime-rl is on no package index. Written from its source at commit 559b447 (2026-08-21) and verifiers 0.4.0,
and tested with objects that have the same fields.
"""

import os
import sys
from typing import Any

from rlscope_otel.faults import Faults
from rlscope_otel.integrations.host import host_run, live_run, now_ns, recording_wanted, version_of
from rlscope_otel.integrations.loading import WatchedModules, watch_modules
from rlscope_otel.integrations.seams import Call, Seams, Watch
from rlscope_otel.recorder import Run

_NS_PER_S = 1_000_000_000
# The trainer's times in the order in which they pass.
_TIMES = ("wait_for_batch", "load_data", "forward_backward", "broadcast_weights", "save_ckpt")

_faults = Faults()


class RlscopeMonitor:
    """A prime-rl monitor that records metrics and episodes. Its errors are counted, never raised."""

    def __init__(self) -> None:
        self._rows: dict[str, Any] = {}
        """Metrics that the trainer has logged for the current step."""

    async def init(self, **unused: Any) -> None:
        """Nothing to set up."""

    async def log(self, data: Any, step: int, kind: str = "train", subset: str = "effective") -> None:
        """Metrics as a dict, or one episode or several."""
        try:
            if isinstance(data, dict):
                self._log_metrics(data, step)
            elif kind == "train":
                self._log_episodes(data if isinstance(data, list) else [data], step, subset)
        except Exception as error:  # Nothing of ours reaches prime-rl.
            _faults.note("monitor", repr(error))

    async def finalize(self) -> None:
        """The run of this process has ended."""
        run = live_run()
        if run is not None:
            run.stop(timeout_s=0.0)

    def _log_metrics(self, metrics: Any, step: int) -> None:
        if "time/wait_for_policy" in metrics:
            _hold(host_run("controller", **_identity()), metrics)
        elif "time/wait_for_batch" in metrics:
            _step(host_run("trainer", **_identity()), {**self._rows, **metrics}, step)
            self._rows = {}
        else:
            self._rows.update(metrics)

    def _log_episodes(self, episodes: list[Any], step: int, subset: str) -> None:
        run = host_run("controller", **_identity())
        for episode in episodes:
            for trace in episode.traces:
                if subset == "all":
                    _sample(run, episode, trace)
                else:
                    # Version N - 1 is the last that was published when step N starts.
                    run.delivery(trace.id, "trained", step=step, consumer_version=step - 1, reward=trace.reward)


class RlscopeVersionObserver:
    """An observer of prime-rl's weight watcher, called before the engines are paused and once new weights are live."""

    def __init__(self) -> None:
        self._pending_ns: int | None = None

    async def on_version_pending(self, step: int) -> None:
        """The engines are about to be paused."""
        self._pending_ns = host_run("controller", **_identity()).now_ns()

    async def on_new_version(self, step: int) -> None:
        """The engines sample under the new version."""
        run, pending_ns = live_run(), self._pending_ns
        if run is not None and pending_ns is not None:
            run.apply_weights(step, str(step), paused=True).between(pending_ns, run.now_ns())


def install() -> None:
    """Add monitor and observer to prime-rl, whether loaded already or later. A no-op without a run folder, or again."""
    if not recording_wanted():
        return
    seams = Seams(_faults, now_ns)
    watch_modules(_WATCHED, lambda: seams, _faults)


def _add_monitor(call: Call) -> None:
    """prime-rl registers monitors on rank 0 only, and so does this: elsewhere its list stays empty."""
    if call.error is None and _is_first_rank():
        sys.modules["prime_rl.monitors"].MONITORS.append(RlscopeMonitor())


def _is_first_rank() -> bool:
    return int(os.environ.get("RANK", os.environ.get("DP_RANK", "0"))) == 0


def _add_observer(call: Call) -> None:
    call.args[0].observers.append(RlscopeVersionObserver())


def _begin_orchestrator(call: Call) -> None:
    config = call.argument(1, "config")
    known = {"framework": "prime-rl", "staleness_policy": "drop", "max_staleness": config.max_off_policy_steps}
    host_run("controller", **_identity(), config=known)


def _identity() -> dict[str, Any]:
    return {"framework": "prime-rl", "framework_version": version_of("prime-rl")}


def _sample(run: Run, episode: Any, trace: Any) -> None:
    """A trace as one segment; one that a frozen model generated is none of the policy's and is left out."""
    policy = episode.run.work.policy
    if policy is None:
        return
    span = trace.timing.agent
    sample = run.sample(
        trace.id,
        episode.group.id if episode.group else None,
        prompt_tokens=trace.num_input_tokens,
        submitted_ns=round(span.start * _NS_PER_S) or None,
        version_source="admission",
    )
    sample.tokens(trace.num_output_tokens, policy.start)
    sample.finish("error" if trace.has_error else "stop", round(span.end * _NS_PER_S) or None)
    if trace.has_error:
        run.delivery(trace.id, "filtered")


def _hold(run: Run, metrics: Any) -> None:
    """The orchestrator held the batch, then packed it, then saved: the row of metrics comes last."""
    held_ns, packed_ns, saved_ns = (
        round(metrics[f"time/{name}"] * _NS_PER_S) for name in ("wait_for_policy", "pack", "save_ckpt")
    )
    end_ns = run.now_ns() - saved_ns - packed_ns
    if held_ns:
        run.wait("staleness_cap").between(end_ns - held_ns, end_ns)


def _step(run: Run, metrics: Any, step: int) -> None:
    """One step of the trainer, laid out backwards from now."""
    starts: dict[str, tuple[int, int]] = {}
    end_ns = run.now_ns()
    for name in reversed(_TIMES):
        start_ns = end_ns - round(metrics[f"time/{name}"] * _NS_PER_S)
        starts[name] = (start_ns, end_ns)
        end_ns = start_ns
    run.wait("samples").between(*starts["wait_for_batch"])
    run.activity("other").between(*starts["load_data"])
    published = metrics["time/broadcast_weights"] > 0
    trained = run.train_step(step, version_in=step - 1)
    trained.record(
        version_out=step if published else step - 1,
        loss=metrics.get("loss/mean"),
        entropy=metrics.get("entropy/all/mean"),
        grad_norm=metrics.get("optim/grad_norm"),
    )
    trained.between(*starts["forward_backward"])
    if published:
        run.publish_weights(step, str(step)).between(*starts["broadcast_weights"])
    if metrics["time/save_ckpt"] > 0:
        run.checkpoint().between(*starts["save_ckpt"])


_WATCHED: WatchedModules = {
    "prime_rl.monitors": {"": {"setup": Watch(after=_add_monitor)}},
    "prime_rl.orchestrator.watcher": {"WeightWatcher": {"__init__": Watch(after=_add_observer)}},
    "prime_rl.orchestrator.orchestrator": {"Orchestrator": {"__init__": Watch(before=_begin_orchestrator)}},
}
