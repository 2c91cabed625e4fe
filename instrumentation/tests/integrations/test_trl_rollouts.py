"""The hook in TRL's rollout process, on a loop with the methods of TRL 1.16.0's `_AsyncRolloutLoop`."""

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from rlscope_otel.integrations import trl_rollouts
from rlscope_otel.integrations.request_ids import RequestName, name_of
from rlscope_otel.integrations.trl_rollouts import Recording, Rollouts, engine_records, tag, untag

from tests.manual_clock import ManualClock

REQUEST_NS = 400


@dataclass
class Row:
    metrics: dict[str, float] = field(default_factory=lambda: {"reward": 1.0})


class Loop:
    num_generations = 2
    lora_name: str | None = None

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.model_version = clock, 1
        self.sent: list[dict[str, Any]] = []
        self.model, self.changes_to, self.fails = "base", None, 0

    async def _generate_one(self, prompt: object, tool_dict: object, tools: object, group_id: int = 0):
        await self._generate_one_turn([1, 2])
        sequences = [SimpleNamespace(rollout_id=f"uuid-{group_id}-{prompt}") for _ in range(2)]
        return [], [], sequences, 0, 0, None

    async def _generate_one_turn(self, prompt_ids: list[int]) -> None:
        payload = {"model": self.model, "prompt": prompt_ids}
        try:
            await self._post("/v1/completions", payload, 10.0)
        except ConnectionError:
            await self._post("/v1/completions", payload, 10.0)

    async def _post(self, path: str, payload: dict[str, Any], timeout: float, max_retries: int = 3) -> dict[str, Any]:
        self.sent.append(dict(payload))
        await asyncio.sleep(0)
        self.clock.advance(REQUEST_NS // 2)
        if self.fails:
            self.fails -= 1
            raise ConnectionError
        if self.changes_to is not None:
            self.model_version = self.changes_to
        self.clock.advance(REQUEST_NS // 2)
        return {"choices": [{"token_ids": [7, 8, 9, 2], "finish_reason": "stop"}]}

    async def _score_group(self, group: SimpleNamespace) -> list[Row]:
        self.clock.advance(50)
        return [Row() for sequences in group.completions_sequences for _ in sequences]

    async def _execute_tool_calls(self, tool_calls: object, tool_dict: object) -> None:
        self.clock.advance(30)

    def _push_metrics(self, values: dict[str, float]) -> None: ...
    def run(self) -> None: ...


@pytest.fixture
def loop(clock) -> Loop:
    return Loop(clock)


@pytest.fixture
def rollouts(run):
    watched = Rollouts(run, "")
    watched.watch(Loop)
    yield watched
    watched.seams.close()


def generate(loop: Loop, *prompts: str, group: int = 5) -> list[Any]:
    async def all_of_them() -> list[Any]:
        tasks = [asyncio.create_task(loop._generate_one(prompt, {}, [], group_id=group)) for prompt in prompts]
        return [(await task)[2] for task in tasks]

    return asyncio.run(all_of_them())


def sent_names(loop: Loop) -> list[RequestName]:
    return [name_of(f"cmpl-{payload['request_id']}-0") for payload in loop.sent]


def test_a_request_that_is_sent_again_is_a_segment_more(loop, rollouts):
    loop.fails = 1
    generate(loop, "a")
    assert [name.segment for name in sent_names(loop)] == [0, 1]


def test_rows_learn_whose_they_are_in_whatever_order_conversations_finished(loop, rollouts, run, rows):
    first, second = generate(loop, "a", "b")
    group = SimpleNamespace(completions_sequences=[second, first])
    scored = asyncio.run(loop._score_group(group))
    assert [untag(row.metrics) for row in scored] == [(1, {1: 4}), (1, {1: 4}), (0, {1: 4}), (0, {1: 4})]
    assert scored[0].metrics == {"reward": 1.0}
    rewards = [row["end_ns"] - row["start_ns"] for row in rows("activities") if row["activity"] == "reward"]
    assert rewards == [50]


def test_without_an_engine_that_records_the_samples_are_written_here_with_versions_by_time(loop, rollouts, columns):
    asyncio.run(loop._post("/health", {}, 1.0))  # The version is seen for the first time.
    loop.changes_to = 2
    generate(loop, "a")
    loop.changes_to = None
    generate(loop, "b")
    named = columns("samples", "sample_id", "segment", "group_id", "finish_reason")
    assert named == [("5-0", 0, "5", "stop"), ("5-1", 0, "5", "stop")]
    counted = ("submitted_ns", "started_ns", "prompt_tokens", "output_tokens", "torn_tokens", "version_source")
    assert columns("samples", *counted)[0] == (1_000_400, None, 2, 4, None, "time_join")
    of_change, after = columns("samples", "versions")
    assert of_change == ([{"version": 1, "start": 0, "end": 3}, {"version": 2, "start": 3, "end": 4}],)
    assert after == ([{"version": 2, "start": 0, "end": 4}],)


def test_an_adapter_s_request_is_of_the_version_in_its_name(loop, rollouts, run, rows):
    loop.lora_name, loop.model, loop.model_version = "policy", "policy-v3", 4
    generate(loop, "a")
    (sample,) = rows("samples")
    assert (sample["versions"], sample["version_source"]) == ([{"version": 3, "start": 0, "end": 4}], "segment")


@pytest.mark.parametrize(
    ("role", "stopped_ns", "wish", "samples"),
    [
        ("sampler", None, "", 0),
        ("sampler", None, "framework", 1),
        ("sampler", 5, "", 1),
        ("trainer", None, "", 1),
    ],
)
def test_an_engine_that_records_itself_writes_the_samples_alone(
    loop, run, rows, tmp_path, monkeypatch, role, stopped_ns, wish, samples
):
    monkeypatch.setenv("RLSCOPE_SAMPLES", wish)
    worker = {"worker_id": "engine", "role": role, "stopped_ns": stopped_ns}
    (tmp_path / "workers" / "engine.json").write_text(json.dumps(worker))
    watched = Rollouts(run, "")
    watched.watch(Loop)
    generate(loop, "a")
    watched.seams.close()
    assert len(rows("samples")) == samples


def test_a_worker_file_that_cannot_be_read_is_no_engine(tmp_path):
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "half.json").write_text("{")
    assert not engine_records(tmp_path)


def test_tools_and_a_full_queue_are_waits(loop, rollouts, run, rows):
    asyncio.run(loop._execute_tool_calls([], {}))
    loop.clock.advance(1000)
    loop._push_metrics({"rollout/backpressure_s": 1e-7})
    loop._push_metrics({"rollout/inflight": 1.0})
    waits = {row["reason"]: row["end_ns"] - row["start_ns"] for row in rows("activities")}
    assert waits == {"environment": 30, "backpressure": 100}


def test_a_group_s_numbers_start_anew_only_when_it_is_complete(loop, rollouts):
    generate(loop, "a", "b")
    generate(loop, "a", group=6)
    generate(loop, "b", group=6)
    assert [name.sample_id for name in sent_names(loop)] == ["5-0", "5-1", "6-0", "6-1"]
    assert not rollouts._numbers


def test_the_process_of_the_loop_is_a_controller_that_stops_with_it(tmp_path, clock, worker, monkeypatch):
    monkeypatch.setenv("RLSCOPE_ROLE", "trainer")  # As the trainer's process, which it inherits from, was told.
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "trainer")
    watched = type("Watched", (Loop,), {})
    loop = trl_rollouts.start_loop(watched, Recording(str(tmp_path), "trainer-rollouts", "40+"), clock=clock)
    generate(loop, "a")
    assert sent_names(loop)[0] == RequestName("40+5-0", "40+5", 0)
    loop.run()
    found = worker("trainer-rollouts")
    assert (found["role"], found["gpu_count"]) == ("controller", 0)
    assert found["stopped_ns"] is not None


def test_a_loop_that_cannot_be_recorded_still_works(tmp_path, clock):
    recording = Recording(str(tmp_path), "a name that is none", "")
    assert isinstance(trl_rollouts.start_loop(Loop, recording, clock=clock), Loop)


def test_what_is_put_into_metrics_are_numbers_and_comes_out_whole():
    metrics = {"reward": 1.0}
    tag(metrics, 3, [(7, 0, 2), (8, 2, 5), (7, 5, 6)])
    assert all(isinstance(value, float) for value in metrics.values())
    assert untag(metrics) == (3, {7: 3, 8: 3})
    assert metrics == {"reward": 1.0}
    assert untag(metrics) == (None, {})
