"""Shared by the hooks of TRL's trainers, both a transformers `Trainer`: steps, checkpoints, evaluations.

A train step lasts from its first tensors to the end of `optimizer.step()`; waits and generation come before it. Loss,
gradient norm, entropy and clip ratio come from the log, and only if it covers a single step, not a mean over several.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlscope_otel.integrations.host import host_run, version_of
from rlscope_otel.integrations.seams import Call, Seams, Watch, Watcher, during
from rlscope_otel.phases import Moment, Phase
from rlscope_otel.recorder import Run

_LOGGED = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "clip_ratio": "clip_ratio/region_mean",
    "truncated_ratio": "completions/clipped_ratio",
}
"""Names in TRL's log, by the name in a train step."""


@dataclass(slots=True)
class _Step:
    """One optimizer step that is not written yet."""

    step: int
    version_in: int
    start_ns: int
    version_out: int = 0
    end_ns: int | None = None
    samples: int = 0
    tokens: int = 0
    rewards: list[float] = field(default_factory=list[float])
    moments: list[Moment] = field(default_factory=list[Moment])
    fresh: list[Moment] = field(default_factory=list[Moment])


class TrainerHook:
    """One watched trainer: calls on other trainers of the process are ignored."""

    def __init__(self, trainer: Any, run: Run) -> None:
        self.trainer = trainer
        self.run = run
        self.seams = Seams(run.faults, run.now_ns)
        self.steps = Steps(self)

    def close(self) -> None:
        """Restore the trainer's functions."""
        _hooks.pop(id(self.trainer), None)
        self.seams.close()

    def watch(self, owner: Any, name: str, before: Watcher | None = None, after: Watcher | None = None) -> bool:
        """Watch a method of the trainer, or of an object that it holds, for that object alone."""
        return self.seams.watch(type(owner), name, Watch(before, after=after, owner=lambda: owner))

    def phase(self, owner: Any, name: str, phase: Callable[[Call], Phase | None], then: Watcher | None = None) -> bool:
        """Record a call of the method as one phase, if any, which is made when the call begins; then do the rest."""
        return self.seams.watch(type(owner), name, during(phase, lambda: owner, then))

    def config(self, group_size: int, model: Any, own: Mapping[str, object]) -> dict[str, object]:
        """The trainer's settings for run.json. own: those that other trainers of TRL do not have, or not so."""
        args, processes = self.trainer.args, self.trainer.accelerator.num_processes
        return {
            "framework": "trl",
            "samples_per_step": args.per_device_train_batch_size * args.gradient_accumulation_steps * processes,
            "group_size": group_size,
            **own,
            "max_output_tokens": args.max_completion_length,
            "gpus_per_trainer_replica": processes,
            "total_steps": self.trainer.state.max_steps,
            "model": _model_facts(model),
        }


class Steps:
    """The optimizer steps of one trainer. A step's row is written once the log after it has come, or the next step."""

    def __init__(self, host: TrainerHook) -> None:
        self._run, self._trainer = host.run, host.trainer
        self._step: _Step | None = None
        self._logged_step = 0
        callbacks = host.trainer.callback_handler
        host.watch(callbacks, "on_train_begin", self._resume)
        host.watch(callbacks, "on_optimizer_step", self._end)
        host.watch(callbacks, "on_log", self._log)
        host.watch(callbacks, "on_train_end", after=self._write)
        host.phase(host.trainer, "_save_checkpoint", lambda call: host.run.activity("checkpoint"))
        host.phase(host.trainer, "evaluate", lambda call: host.run.activity("eval"))

    @property
    def number(self) -> int:
        """The optimizer step under way, from 1."""
        return self._trainer.state.global_step + 1

    def begin(self, version_in: int, version_out: int) -> None:
        """Compute begins now, unless it has begun already for this step."""
        if self._step is not None and self._step.end_ns is None:
            return
        self._write()
        self._step = _Step(self.number, version_in, self._run.now_ns(), version_out)

    def add(self, samples: int, tokens: int, rewards: Iterable[float] = ()) -> None:
        """A micro-batch of the step: its samples, their tokens, and the rewards that are known."""
        if self._step is not None:
            self._step.samples += samples
            self._step.tokens += tokens
            self._step.rewards += rewards

    def add_moment(self, moment: Moment, is_fresh: bool) -> None:
        """Importance ratios of tokens of the step, of one age; fresh when their samples are wholly of its version."""
        if self._step is not None:
            self._step.moments.append(moment)
            if is_fresh:
                self._step.fresh.append(moment)

    def _resume(self, call: Call) -> None:
        """Training begins, at the step of a checkpoint perhaps."""
        self._logged_step = self._trainer.state.global_step

    def _end(self, call: Call) -> None:
        if self._step is not None:
            self._step.end_ns = self._run.now_ns()

    def _log(self, call: Call) -> None:
        logs, step = call.kwargs.get("logs", call.args[-1]), self._trainer.state.global_step
        covered, self._logged_step = step - self._logged_step, step
        self._write(values=logs if covered == 1 and "loss" in logs else {})

    def _write(self, call: Call | None = None, values: Mapping[str, Any] | None = None) -> None:
        step, self._step = self._step, None
        if step is None or step.end_ns is None:
            return
        row = self._run.train_step(step.step, version_in=step.version_in, samples=step.samples, tokens=step.tokens)
        row.record(
            version_out=step.version_out,
            reward_mean=sum(step.rewards) / len(step.rewards) if step.rewards else None,
            importance=merged(step.moments) or None,
            fresh=merged(step.fresh)[0][1:] if step.fresh else None,
            **{name: (values or {}).get(key) for name, key in _LOGGED.items()},
        )
        row.between(step.start_ns, step.end_ns)


_Hook = TypeVar("_Hook", bound=TrainerHook)
_hooks: dict[int, Any] = {}
"""By the trainer's identity."""


def hook_of(trainer: Any, role: str, run: Run | None, make: Callable[[Any, Run], _Hook]) -> _Hook | None:
    """The hook of a trainer, made at the first call: in `run`, else in the process's run. None without a run."""
    if id(trainer) in _hooks:
        return _hooks[id(trainer)]
    if run is None:
        run = host_run(role, framework="trl", framework_version=version_of("trl"))
    if not run.active:
        return None
    try:
        hook = _hooks[id(trainer)] = make(trainer, run)
    except Exception as error:  # Another version's trainer may be anything.
        run.faults.note(f"trl {role}", repr(error))
        return None
    return hook


def _model_facts(model: Any) -> dict[str, object]:
    """Return the `model` entry of run.json, with the values that the model's configuration has."""
    config = model.config.get_text_config()
    heads, width = getattr(config, "num_attention_heads", None), getattr(config, "hidden_size", None)
    facts = {
        "name": Path(getattr(model.config, "_name_or_path", "") or type(model).__name__).name,
        "parameters": model.num_parameters(),
        "layers": getattr(config, "num_hidden_layers", None),
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or (width // heads if width and heads else None),
    }
    return {name: value for name, value in facts.items() if value is not None}


def merged(moments: Iterable[Moment]) -> list[Moment]:
    """One moment for each staleness: sums add up."""
    sums: dict[int, tuple[int, float, float]] = {}
    for staleness, tokens, sum_w, sum_w2 in moments:
        before = sums.get(staleness, (0, 0.0, 0.0))
        sums[staleness] = (before[0] + tokens, before[1] + sum_w, before[2] + sum_w2)
    return [(staleness, *sums[staleness]) for staleness in sorted(sums)]


def finite(value: Any) -> float | None:
    """A number, or None for what is none: TRL writes NaN for a reward that no function gave."""
    return None if value is None or not math.isfinite(value) else float(value)
