"""A loop that keeps its own counts: every number of the analysis equals them, after a kill and restarts too."""

from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import rlscope_otel

from rlscope.pipeline import analyze

pytestmark = pytest.mark.usefixtures("no_model")

CAP = 2
"""Staleness above which a sample is dropped, versions."""
QUEUED = 2
"""Groups that wait in the queue before the trainer takes one."""
LAGS = (0, 1, 3)
"""Versions that each sampler is behind: of the last one, samples are dropped."""


@dataclass
class Counts:
    """What the loop knows itself."""

    steps: int = 0
    generated_tokens: int = 0
    samples: Counter[str] = field(default_factory=Counter[str])
    tokens: Counter[str] = field(default_factory=Counter[str])
    """Samples and tokens by outcome."""
    staleness: Counter[int] = field(default_factory=Counter[int])
    """Trained tokens by their staleness, versions."""


class Sample(NamedTuple):
    sample_id: str
    versions: tuple[int, ...]
    queued_ns: int


class Loop:
    """Three samplers that name their samples from 0 on at each start, a queue and a trainer; nothing sleeps."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts, self.version = folder, Counts(), 0
        self.queue: deque[list[Sample]] = deque()
        self.samplers = [self.start("sampler", f"sampler-{place}") for place in range(3)]
        self.groups = [0, 0, 0]
        self.trainer = self.start("trainer", "trainer-0", config={"max_staleness": CAP, "samples_per_step": 4})

    def start(self, role: str, name: str, **more: Any) -> rlscope_otel.Run:
        return rlscope_otel.start_run(self.folder, role, name, gpu_count=1, flush_interval_s=3600.0, **more)

    def run(self, steps: int) -> None:
        for place in range(steps):
            while len(self.queue) <= QUEUED:
                self.generate((place + len(self.queue)) % 3)
            self.train()

    def generate(self, place: int) -> None:
        """One sampler generates a group of four samples, applying a version halfway."""
        run, number = self.samplers[place], self.groups[place]
        self.groups[place] += 1
        first = max(0, self.version - LAGS[place] - 1)
        handles = [run.sample(f"{place}/{number}/{n}", group_id=f"{place}/{number}", prompt_tokens=5) for n in range(4)]
        lengths, group = [3 + place + n for n in range(4)], list[Sample]()
        second = min(first + 1, self.version)
        for version in (first, second):
            with run.apply_weights(version, paused=True, kv="kept"):
                pass
            start_ns = run.now_ns()
            for handle, length in zip(handles, lengths, strict=True):
                handle.tokens(length, version)
            run.engine_step(start_ns, run.now_ns() + 1, running=4, decode_tokens=sum(lengths))
        for n, (handle, length) in enumerate(zip(handles, lengths, strict=True)):
            handle.finish("stop")
            self.counts.generated_tokens += 2 * length
            versions = (first,) * length + (second,) * length
            group.append(Sample(f"{place}/{number}/{n}", versions, run.now_ns()))
        self.queue.append(group)

    def train(self) -> None:
        """The trainer takes a group, drops what is too stale, and trains on the rest."""
        step, trained = self.counts.steps, 0
        for sample in self.queue.popleft():
            stale = self.version - min(sample.versions) > CAP
            outcome = "dropped_stale" if stale else "trained"
            named = {} if stale else {"step": step, "consumer_version": self.version}
            self.trainer.delivery(sample.sample_id, outcome, queued_ns=sample.queued_ns, **named)
            self.counts.samples[outcome] += 1
            self.counts.tokens[outcome] += len(sample.versions)
            if not stale:
                trained += len(sample.versions)
                self.counts.staleness.update(self.version - each for each in sample.versions)
        with self.trainer.train_step(step, version_in=self.version, samples=4, tokens=trained) as measured:
            measured.record(version_out=self.version + 1)
        with self.trainer.publish_weights(self.version + 1):
            self.version += 1
        self.counts.steps += 1

    def kill(self, *runs: rlscope_otel.Run) -> None:
        """End recorders as SIGKILL does, after a flush."""
        for run in runs:
            assert run.flush()
            run.abandon()

    def restart_sampler(self, place: int) -> None:
        self.kill(self.samplers[place])
        self.samplers[place], self.groups[place] = self.start("sampler", f"sampler-{place}"), 0

    def stop(self) -> None:
        for run in (*self.samplers, self.trainer):
            assert run.stop()


def assert_counted(folder: Path, counts: Counts) -> None:
    """Every count of the analysis is the loop's own."""
    analysis = analyze(folder, also_ask=())
    run, balance = analysis.run, analysis.answers["token_balance"].row(0, named=True)
    outcomes = {row["outcome"]: row for row in analysis.answers["delivery_outcomes"].iter_rows(named=True)}
    assert (run.steps, run.samples_trained) == (counts.steps, counts.samples["trained"])
    assert run.tokens_trained == balance["trained_tokens"] == counts.tokens["trained"]
    assert balance["generated_tokens"] == counts.generated_tokens
    assert {name: row["samples"] for name, row in outcomes.items()} == dict(counts.samples)
    assert {name: row["tokens"] for name, row in outcomes.items()} == dict(counts.tokens)
    assert {age: tokens for age, tokens in analysis.staleness.tokens.histogram if tokens} == dict(counts.staleness)
    assert (run.trainer_gpus, run.sampler_gpus) == (1, 3)
    assert analysis.throughput.generated_tokens_per_s == pytest.approx(counts.generated_tokens / run.duration_s)
    assert not analysis.data_quality.no_verdict


def test_after_a_kill_and_restarts_of_samplers_every_count_is_the_last_loop_s_own(tmp_path: Path) -> None:
    killed = Loop(tmp_path)
    killed.run(12)
    killed.kill(*killed.samplers, killed.trainer)
    loop = Loop(tmp_path)
    for place in range(3):
        loop.run(6)
        loop.restart_sampler(place)
    loop.run(6)
    loop.stop()
    assert loop.counts.samples["trained"] and loop.counts.samples["dropped_stale"]
    assert_counted(tmp_path, loop.counts)
