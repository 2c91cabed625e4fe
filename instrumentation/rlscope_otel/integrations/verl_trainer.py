"""verl's trainer: what it waits for, its passes, its publications, and which samples each step trains on.

verl drives the ranks from one process, which represents all trainer GPUs here; its times are those of its calls to the
ranks. The samples of a step come from `addition_process`, which gets each group in the order in which it was taken from
the queue, with its rows in the order of the agent loops; later verl reorders the batch.
"""

from collections import deque
from typing import Any

from rlscope_otel.integrations.host import live_run
from rlscope_otel.integrations.seams import Call, Watch
from rlscope_otel.integrations.verl_processes import argument, begin, gpus_of, setting
from rlscope_otel.integrations.verl_samples import row_name
from rlscope_otel.phases import TrainStep


class _Collecting:
    """Samples that this process's trainer has taken from the queue for its next step."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.began_ns: int | None = None
        """When this worker began to record; None once training has begun."""
        self.last_taken_ns: int | None = None
        self.taken_ns: deque[int] = deque()
        """When each group was taken, for those that are not delivered yet."""


_collecting = _Collecting()


def _begin_trainer(call: Call) -> None:
    config = argument(call, 1, "config")
    _collecting.began_ns = begin("trainer", config, gpus_of(config, "trainer")).now_ns()


def _begin_fit(call: Call) -> None:
    run = live_run()
    if run is not None and _collecting.began_ns is not None:
        run.startup().between(_collecting.began_ns, call.started_ns)
    _collecting.began_ns = None


def _end_fit(call: Call) -> None:
    """verl now lets Ray kill this process: the last rows are written, but nobody waits for it here."""
    run = live_run()
    if run is not None:
        run.stop(timeout_s=0.0)


def _begin_collecting(call: Call) -> None:
    _collecting.trainer = call.args[0]
    _collecting.last_taken_ns = None
    _collecting.taken_ns.clear()


def _took(call: Call) -> None:
    run = live_run()
    if run is not None and call.error is None:
        _collecting.last_taken_ns = run.now_ns()
        _collecting.taken_ns.append(_collecting.last_taken_ns)


def _end_collecting(call: Call) -> None:
    """Once the last group is there, the batch is unpickled and put together."""
    run = live_run()
    if run is None:
        return
    now_ns = run.now_ns()
    taken_ns = _collecting.last_taken_ns or now_ns
    run.wait("samples").between(call.started_ns, taken_ns)
    run.activity("other").between(taken_ns, now_ns)


def _deliver(call: Call) -> None:
    run, trainer = live_run(), _collecting.trainer
    if run is None or trainer is None:
        return
    group = argument(call, 0, "output")
    taken_ns = _collecting.taken_ns.popleft() if _collecting.taken_ns else None
    rewards = _rewards(group)
    for row, uid in enumerate(group.non_tensor_batch["uid"]):
        run.delivery(
            row_name(uid, row),
            "trained",
            taken_ns,
            step=trainer.global_steps,
            consumer_version=trainer.current_param_version,
            reward=rewards[row] if rewards is not None else None,
        )


def _rewards(group: Any) -> list[float] | None:
    """Return the reward of each trajectory, the sum over its tokens. None if rewards are computed later."""
    if "rm_scores" not in group.batch.keys():  # noqa: SIM118  # a TensorDict is no mapping
        return None
    return group.batch["rm_scores"].sum(-1).tolist()


def _trained(call: Call) -> None:
    """One optimizer step; none while only the critic warms up."""
    run, trainer = live_run(), call.args[0]
    if run is None or call.error is not None or "update_actor" not in trainer.timing_raw:
        return
    batch = argument(call, 1, "batch")
    version = int(trainer.current_param_version)
    tokens = batch.meta_info.get("global_token_num")
    step: TrainStep = run.train_step(
        trainer.global_steps, version_in=version, samples=len(batch), tokens=None if tokens is None else sum(tokens)
    )
    metrics: dict[str, Any] = trainer.metrics
    step.record(
        loss=metrics.get("actor/loss", metrics.get("actor/pg_loss")),
        grad_norm=metrics.get("actor/grad_norm"),
        entropy=metrics.get("actor/entropy"),
        clip_ratio=metrics.get("actor/pg_clipfrac"),
        reward_mean=_mean_reward(trainer),
        version_out=version + (trainer.local_trigger_step >= trainer.trigger_parameter_sync_step),
    )
    step.between(call.started_ns, run.now_ns())


def _mean_reward(trainer: Any) -> float | None:
    return None if trainer.reward_tensor is None else float(trainer.reward_tensor.sum(-1).mean())


def _published(call: Call) -> None:
    """verl asks at every step and answers None when it was not yet time."""
    run = live_run()
    if run is not None and call.result is not None:
        version = call.args[0].current_param_version
        run.publish_weights(version, str(version)).between(call.started_ns, run.now_ns())


class _Pass:
    """Records a pass of every step, unless the trainer has switched it off. A class, so that it can be pickled."""

    def __init__(self, activity: str, switch: str | None = None) -> None:
        self._activity = activity
        self._switch = switch

    def __call__(self, call: Call) -> None:
        run = live_run()
        if run is not None and (self._switch is None or getattr(call.args[0], self._switch)):
            run.activity(self._activity).between(call.started_ns, run.now_ns())


def _validated(call: Call) -> None:
    """verl calls it in every step: whether it is time to is decided inside."""
    run, trainer = live_run(), call.args[0]
    version, period = int(trainer.current_param_version), setting(trainer.config, "trainer.test_freq")
    due = argument(call, 1, "val_before_train") or (period and period > 0 and version > 0 and version % period == 0)
    if run is not None and due and trainer.local_trigger_step == 1:
        run.evaluation().between(call.started_ns, run.now_ns())


_PASSES = {
    "_fit_compute_reward": _Pass("reward"),
    "_fit_compute_log_prob": _Pass("logprobs"),
    "_fit_compute_ref_log_prob": _Pass("logprobs", "use_reference_policy"),
    "_fit_compute_critic": _Pass("logprobs", "use_critic"),
    "_fit_compute_advantage": _Pass("other"),
    "_fit_update_critic": _Pass("train", "use_critic"),
    "_save_checkpoint": _Pass("checkpoint"),
}

TRAINER = {
    "__init__": Watch(before=_begin_trainer),
    "fit": Watch(before=_begin_fit, after=_end_fit),
    "_get_samples_from_queue": Watch(before=_begin_collecting, after=_end_collecting),
    "_fit_update_actor": Watch(after=_trained),
    "_fit_update_weights": Watch(after=_published),
    "_fit_validate": Watch(after=_validated),
    **{name: Watch(after=recorded) for name, recorded in _PASSES.items()},
}
CLIENT = {"get_sample": Watch(after=_took)}
ASSEMBLY = {"addition_process": Watch(before=_deliver)}
