"""Runs a world at a layout, token by token, and says what came of it; on request it leaves a run folder behind."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import draws
from .agenda import Agenda
from .batch import Batch
from .engine import Engine
from .exchange import Exchange
from .pass_cost import PassCost
from .recording import Recording
from .trainer import Trainer
from .world import Layout, World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run, counted by the simulator itself. Seconds since the start of the run."""

    end_s: float
    step_ends_s: tuple[float, ...]
    step_response_tokens: tuple[int, ...]
    step_publishes: tuple[bool, ...]
    """Whether a version was published from each step."""
    staleness_tokens: Mapping[int, int]
    """Trained response tokens by staleness."""
    step_staleness_samples: tuple[Mapping[int, int], ...]
    """Samples of each step by the staleness of their oldest token."""
    step_outcomes: tuple[Mapping[str, Sequence[int]], ...]
    """Response tokens of the samples by the outcome of their delivery, for each step that ended next."""
    generated_tokens: int
    prefilled_tokens: int
    trainer_waits_s: Mapping[str, float]
    """By reason; the clock of the trainers, not GPU-seconds."""
    engine_waits_s: Mapping[str, float]
    """By reason, added up over engines."""
    running_mean: float
    """Running requests of an engine while it decodes, weighted by time."""
    preemptions: int
    recomputed_tokens: int
    """Tokens of requests put back, prompt and response, that were prefilled once more."""

    def tokens_per_s(self, first_step: int) -> float:
        """Trained response tokens per second, from the end of the step before the `first_step`-th (1, 2, ...)."""
        since_s = self.step_ends_s[first_step - 2] if first_step > 1 else 0.0
        return sum(self.step_response_tokens[first_step - 1 :]) / (self.step_ends_s[-1] - since_s)

    def staleness_p95(self, first_step: int) -> int:
        """95th percentile of the samples' staleness from the `first_step`-th step (1, 2, ...) on, in versions."""
        samples = sum((Counter(step) for step in self.step_staleness_samples[first_step - 1 :]), Counter[int]())
        ages = sorted(samples.elements())
        return ages[-(-len(ages) * 95 // 100) - 1]

    def lengths_tokens(self, outcome: str, first_step: int = 1) -> list[int]:
        """Response tokens of each sample with that outcome, from the `first_step`-th step (1, 2, ...) on."""
        return [tokens for step in self.step_outcomes[first_step - 1 :] for tokens in step.get(outcome, ())]

    def version_steps(self, first_step: int) -> float:
        """Steps for each that published, from the `first_step`-th on: how long a version lasts."""
        publishes = self.step_publishes[first_step - 1 :]
        return len(publishes) / max(1, sum(publishes))


def simulate_world(world: World, layout: Layout, steps: int, seed: int, folder: Path | None = None) -> Outcome:
    """Run the world at the layout for so many optimizer steps; with a folder, record the run into it.

    The same seed gives the same run. Raises ValueError for a layout or limits that can never fill a step.
    """
    _check(world, layout)
    recording = None if folder is None else Recording(world, layout, steps)
    agenda = Agenda()
    exchange = Exchange(world, agenda)
    noise = draws.noise(draws.stream(seed, "training"), world.training.noise_sd)
    trainer = Trainer(world, layout.trainer_gpus, steps, exchange, agenda, noise)
    engines = _engines(world, layout, seed, exchange, agenda)
    exchange.onlookers += [trainer.look, *(engine.look for engine in engines)]
    exchange.on_eviction = partial(trainer.throw_away, outcome="dropped_stale")
    trainer.on_published = partial(_send, agenda, engines, world.updates.transfer_s)
    trainer.recording = recording
    for engine in engines:
        engine.recording = recording
    _start(world, trainer, engines, agenda, seed)
    end_s = agenda.run()
    ends_s = {engine.worker_id: engine.stop(end_s) for engine in engines}
    if folder is not None and recording is not None:
        recording.write(folder, {**ends_s, **dict.fromkeys(recording.trainers, end_s)})
    return _outcome(trainer, engines, end_s)


class Truth(NamedTuple):
    """A layout in its steady state: without the first third of the steps."""

    tokens_per_s: float
    """Trained response tokens."""
    staleness_p95: int
    """Of the samples, by their oldest token, in versions."""
    version_steps: float
    """That a version lasts."""

    @property
    def p95_steps(self) -> float:
        """The staleness in steps."""
        return self.staleness_p95 * self.version_steps


def truth_of(world: World, layout: Layout, steps: int = 100, seed: int = 1) -> Truth:
    """What a layout truly does, without a folder."""
    outcome, first_step = simulate_world(world, layout, steps, seed), steps // 3 + 1
    return Truth(outcome.tokens_per_s(first_step), outcome.staleness_p95(first_step), outcome.version_steps(first_step))


def true_tokens_per_s(world: World, layout: Layout, steps: int = 100, seed: int = 1) -> float:
    """Its rate alone."""
    return truth_of(world, layout, steps, seed).tokens_per_s


def _engines(world: World, layout: Layout, seed: int, exchange: Exchange, agenda: Agenda) -> list[Engine]:
    engines: list[Engine] = []
    count = layout.sampler_gpus // world.gpus_per_engine
    for index in range(count):
        noise = draws.pass_noise(world.passes, seed, index)
        cost = PassCost(world.passes, draws.slowness(world, index), noise, layout.max_running)
        batch = Batch(layout.max_running, world.kv_capacity_tokens)
        engines.append(Engine(f"sampler-{index}", world, batch, cost, exchange, agenda, count))
    return engines


def _start(world: World, trainer: Trainer, engines: list[Engine], agenda: Agenda, seed: int) -> None:
    """Start-up takes the trainers half as long again as the engines."""
    groups = draws.groups(world, seed)
    for engine in engines:
        engine.groups = groups
        if engine.recording is not None:
            engine.recording.activity(engine.worker_id, "startup", 0.0, world.startup_s)
        agenda.schedule(world.startup_s, engine.between_passes)
    ready_s = world.startup_s * 1.5
    if trainer.recording is not None:
        trainer.recording.trainer_activity("startup", 0.0, ready_s)
    agenda.schedule(ready_s, partial(trainer.start, flat=_flat(world, seed)))


def _flat(world: World, seed: int) -> Iterator[bool]:
    random = draws.stream(seed, "rewards")
    while True:
        yield from (random.random(1024) < world.rollouts.filtered_ratio).tolist()


def _send(agenda: Agenda, engines: list[Engine], transfer_s: float, now_s: float, version: int) -> None:
    for engine in engines:
        agenda.schedule(now_s + transfer_s, partial(engine.receive, version))


def _outcome(trainer: Trainer, engines: list[Engine], end_s: float) -> Outcome:
    waits_s: Counter[str] = Counter()
    for engine in engines:
        waits_s.update(engine.waits_s)
    decoding_s = sum(engine.decoding_s for engine in engines)
    return Outcome(
        end_s=end_s,
        step_ends_s=tuple(trainer.step_ends_s),
        step_response_tokens=tuple(trainer.step_response_tokens),
        step_publishes=tuple(trainer.step_publishes),
        staleness_tokens=dict(trainer.staleness_tokens),
        step_staleness_samples=tuple(trainer.step_staleness_samples),
        step_outcomes=tuple(trainer.step_outcomes),
        generated_tokens=sum(engine.decoded_tokens for engine in engines),
        prefilled_tokens=sum(engine.prefilled_tokens for engine in engines),
        trainer_waits_s=dict(trainer.waits_s),
        engine_waits_s=dict(waits_s),
        running_mean=sum(engine.running_s for engine in engines) / decoding_s,
        preemptions=sum(engine.preemptions for engine in engines),
        recomputed_tokens=sum(engine.recomputed_tokens for engine in engines),
    )


def _check(world: World, layout: Layout) -> None:
    rollouts, limits = world.rollouts, world.limits
    if layout.trainer_gpus % world.gpus_per_trainer_replica or layout.sampler_gpus % world.gpus_per_engine:
        raise ValueError(f"{layout} does not divide into replicas and engines of {world.name}")
    if min(layout.trainer_gpus, layout.sampler_gpus, layout.max_running) < 1:
        raise ValueError(f"{layout} leaves one side without anything")
    if rollouts.samples_per_step % rollouts.group_size:
        raise ValueError(f"{world.name}: a step is not a whole number of groups")
    least = rollouts.samples_per_step
    training = world.training
    if training.shares_batch:
        least *= training.steps_per_version
    if training.micro_batch_samples:
        least = rollouts.unit_samples
        if training.batches_ahead or training.shares_batch or training.logprobs_ratio:
            raise ValueError(f"{world.name}: micro-batches are trained on as they come, and with nothing before them")
    if min(limits.queue_capacity_samples or least, limits.max_in_flight_samples or least) < least:
        raise ValueError(f"{world.name}: the queue, or what is in flight, never holds a step's samples")
    longest = world.responses.max_output_tokens + world.responses.prompt_tokens * 3 // 2 + 2
    if world.kv_capacity_tokens is not None and world.kv_capacity_tokens < longest:
        raise ValueError(f"{world.name}: the KV cache does not hold the longest sample, {longest} tokens")
