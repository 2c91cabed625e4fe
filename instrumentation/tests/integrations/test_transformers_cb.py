"""The continuous batching hook on a small loop with the parts and names of transformers 5.23.0, moved by hand."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import rlscope_otel
from rlscope_otel import Run
from rlscope_otel.integrations import transformers_cb
from rlscope_otel.integrations.request_ids import RequestName, request_id_of

from tests.manual_clock import ManualClock

PAUSE_NS = 30
PREPARE_NS, FORWARD_NS, UPDATE_NS = 10, 100, 5
EOS = 2
TOKEN = 9


@dataclass
class State:
    request_id: str
    initial_tokens: list[int]
    max_new_tokens: int = 100
    generated_tokens: list[int] = field(default_factory=list)
    position_offset: int = 0
    status: int = 0
    num_children: int = 0
    created_time: float = field(default_factory=time.perf_counter)
    _eos_token_ids: frozenset[int] = frozenset({EOS})


class Scheduler:
    max_requests_per_batch = 2

    def __init__(self) -> None:
        self.active_requests: dict[str, State] = {}
        self.waiting_requests: dict[str, State] = {}
        self.to_cancel: list[str] = []

    def add_waiting_request(self, state: State) -> None:
        self.waiting_requests[state.request_id] = state

    def clear_cancelled_requests(self) -> list[State]:
        names, self.to_cancel = self.to_cancel, []
        return [state for name in names if (state := self.active_requests.pop(name, None))]


class BackgroundThreadStatus:
    def __init__(self, clock: ManualClock) -> None:
        self._paused, self.tp_status, self.clock = False, 0, clock

    def pause_and_wait(self) -> None:
        self.clock.advance(PAUSE_NS)

    def mark_as_stopped(self) -> None: ...


class ContinuousBatchingAsyncIOs:
    def prepare_batch_update(self) -> None: ...


class OutputRouter:
    def __init__(self) -> None:
        self.on_delivery: Any = None

    def deliver_batch(self, outputs: list[State]) -> None:
        if self.on_delivery:
            self.on_delivery(outputs)


class ContinuousBatchProcessor:
    def __init__(self, status: BackgroundThreadStatus, clock: ManualClock) -> None:
        self.scheduler, self.status, self.clock = Scheduler(), status, clock
        self.inputs_and_outputs = SimpleNamespace(requests_in_batch=[])
        self.cache = SimpleNamespace(num_blocks=8, compute_free_capacity=lambda: 0.75)
        self.cb_config = SimpleNamespace(page_size=16)
        self.output_router = OutputRouter()
        self.inbox: list[State] = []
        self.next_tokens: dict[str, int] = {}
        self.during_forward: list[Any] = []
        self.query_limit = 100

    def prepare_next_batch(self) -> bool:
        for state in self.inbox:
            self.scheduler.add_waiting_request(state)
        self.inbox = []
        self.scheduler.clear_cancelled_requests()
        active, waiting = self.scheduler.active_requests, self.scheduler.waiting_requests
        while waiting and len(active) < self.scheduler.max_requests_per_batch:
            name = next(iter(waiting))
            active[name] = waiting.pop(name)
        self.clock.advance(PREPARE_NS)
        self.inputs_and_outputs.requests_in_batch = [self._scheduled(state) for state in active.values()]
        return bool(active)

    def _scheduled(self, state: State) -> SimpleNamespace:
        left = len(state.initial_tokens) + len(state.generated_tokens) - state.position_offset
        query = min(left, self.query_limit)
        state.position_offset += query
        return SimpleNamespace(state=state, query_length=query, has_new_token=query == left)

    def _generation_step(self, model: object) -> None:
        self.clock.advance(FORWARD_NS)
        for action in self.during_forward:
            action()
        self.during_forward = []

    def update_batch(self) -> None:
        finished: list[State] = []
        for future in self.inputs_and_outputs.requests_in_batch:
            state = future.state
            if not future.has_new_token:
                continue
            state.generated_tokens.append(self.next_tokens.get(state.request_id, TOKEN))
            if state.generated_tokens[-1] == EOS or len(state.generated_tokens) == state.max_new_tokens:
                state.status = 3
                del self.scheduler.active_requests[state.request_id]
                finished.append(state)
        if finished:
            self.output_router.deliver_batch(finished)
        self.clock.advance(UPDATE_NS)

    def _handle_request_error(self, error: Exception, state: State) -> None:
        state.status = 4
        self.scheduler.active_requests.pop(state.request_id, None)


class ContinuousBatchingManager:
    def __init__(self, clock: ManualClock) -> None:
        self.model, self.clock = object(), clock
        self.background_thread_status = BackgroundThreadStatus(clock)
        self.batch_processor: ContinuousBatchProcessor | None = None

    def start(self) -> ContinuousBatchProcessor:
        self.batch_processor = self._create_batch_processor()
        return self.batch_processor

    def _create_batch_processor(self) -> ContinuousBatchProcessor:
        self.clock.advance(1000)
        return ContinuousBatchProcessor(self.background_thread_status, self.clock)

    def run(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            if self.batch_processor.prepare_next_batch():
                self.batch_processor._generation_step(self.model)
                self.batch_processor.update_batch()


@pytest.fixture
def manager(clock: ManualClock) -> ContinuousBatchingManager:
    return ContinuousBatchingManager(clock)


@pytest.fixture
def engine(manager: ContinuousBatchingManager, run: Run):
    watched = transformers_cb.instrument(manager, run)
    manager.start()
    yield watched
    watched.close()


@pytest.fixture
def loop(manager: ContinuousBatchingManager, engine) -> ContinuousBatchProcessor:
    return manager.batch_processor


def test_each_generation_step_is_an_engine_step_with_the_batch_that_was_in_it(manager, loop, run, columns):
    loop.inbox = [State("a", [1, 2, 3]), State("b", [1]), State("c", [1])]
    manager.run(rounds=2)
    assert columns("engine_steps", "start_ns", "end_ns", "busy_ns") == [
        (1_001_000, 1_001_115, 100),
        (1_001_115, 1_001_230, 100),
    ]
    loads = columns("engine_steps", "running", "waiting", "decode_tokens", "prefill_tokens", "kv_used_tokens")
    assert loads == [(2, 1, 2, 4, 32), (2, 1, 2, 0, 32)]


def test_a_prompt_that_takes_two_passes_yields_its_first_token_with_the_second(manager, loop, run, columns):
    loop.query_limit = 3
    loop.inbox = [State("a", [1, 2, 3, 4, 5])]
    manager.run(rounds=2)
    assert columns("engine_steps", "prefill_tokens", "decode_tokens") == [(3, 0), (2, 1)]


def test_a_request_is_a_sample_under_the_name_in_its_id_with_its_reason_to_end(manager, loop, run, rows):
    name = request_id_of(RequestName("7-1", "7", 0))
    loop.inbox = [State(name, [1, 2]), State("plain", [1], max_new_tokens=1)]
    manager.run()
    loop.next_tokens = {name: EOS}
    manager.run()
    plain, named = rows("samples")
    assert [named[key] for key in ("sample_id", "group_id", "prompt_tokens", "output_tokens")] == ["7-1", "7", 2, 2]
    assert (named["finish_reason"], plain["finish_reason"]) == ("stop", "length")
    assert (named["started_ns"], named["finished_ns"]) == (1_001_010, 1_001_225)
    assert named["version_source"] == "engine"


def test_whoever_gets_a_result_can_ask_which_versions_sampled_it(manager, engine, loop):
    asked = []
    loop.output_router.on_delivery = lambda outputs: asked.append(engine.versions_of(outputs[0].request_id))
    loop.inbox = [State("a", [1], max_new_tokens=2)]
    manager.run(rounds=2)
    assert asked == [((0, 0, 2),)]
    assert engine.versions_of("a") is None


def test_tokens_of_a_pass_under_which_weights_changed_are_torn_and_of_the_version_before(
    manager, engine, loop, run, rows
):
    loop.inbox = [State("a", [1], max_new_tokens=3)]

    def swap() -> None:
        with engine.apply(1, "step-8"):
            manager.clock.advance(1)

    loop.during_forward = [swap]
    manager.run(rounds=3)
    sample = rows("samples")[0]
    assert sample["torn_tokens"] == 1
    assert [run["version"] for run in sample["versions"]] == [0, 1]
    (applied,) = rows("weight_updates")
    assert (applied["label"], applied["paused"]) == ("step-8", False)


def test_a_change_that_broke_off_leaves_the_version(manager, engine, loop):
    with pytest.raises(ValueError, match="the host's own"), engine.apply(1):
        raise ValueError("the host's own")
    assert engine.version == 0


def test_an_engine_without_requests_waits_for_them(manager, loop, run, columns):
    manager.run()
    manager.clock.advance(1000)
    manager.run()
    loop.inbox = [State("a", [1])]
    manager.run()
    waits = columns("activities", "activity", "reason", "start_ns", "end_ns")[1:]
    assert waits == [("wait", "requests", 1_001_000, 1_002_020)]


def test_a_pause_without_new_weights_is_another_activity(manager, loop, run, rows):
    loop.status.pause_and_wait()
    others = [row["end_ns"] - row["start_ns"] for row in rows("activities") if row["activity"] == "other"]
    assert others == [PAUSE_NS]


def test_cancelled_failed_and_cut_off_requests_end_as_such(manager, engine, loop, run, rows):
    loop.scheduler.max_requests_per_batch = 3
    loop.inbox = [State("gone", [1]), State("broken", [1]), State("late", [1])]
    manager.run()
    loop.scheduler.to_cancel = ["gone"]
    loop._handle_request_error(ValueError(), loop.scheduler.active_requests["broken"])
    manager.run()
    manager.background_thread_status.tp_status = 2
    loop._handle_request_error(RuntimeError(), loop.scheduler.active_requests["late"])
    assert {row["sample_id"]: (row["finish_reason"], row["output_tokens"]) for row in rows("samples")} == {
        "gone": ("abort", 1),
        "broken": ("error", 1),
        "late": ("unfinished", 2),
    }


def test_a_fork_is_another_sample_of_its_group(manager, loop, run, rows):
    parent = State("p", [1, 2], max_new_tokens=1, num_children=1)
    loop.inbox = [parent]
    fork = State("p__child#0", [1, 2], max_new_tokens=1, position_offset=1)
    loop.scheduler.active_requests["p__child#0"] = fork
    manager.run()
    assert {(row["sample_id"], row["group_id"]) for row in rows("samples")} == {("p", "p"), ("p.0", "p")}


def test_what_the_manager_holds_is_said_of_the_worker(engine, run, worker):
    run.flush()
    assert (worker("w0")["kv_capacity_tokens"], worker("w0")["max_running"]) == (128, 2)


def test_another_manager_of_the_process_is_not_recorded(manager, loop, run, rows, clock):
    other = ContinuousBatchingManager(clock)
    other.start().inbox = [State("a", [1])]
    other.run()
    assert rows("engine_steps") == []


def test_a_manager_is_watched_once_and_given_back_at_the_end(manager, run):
    host = ContinuousBatchProcessor.update_batch
    engine = transformers_cb.instrument(manager, run)
    assert transformers_cb.instrument(manager, run) is engine
    assert ContinuousBatchProcessor.update_batch is not host
    engine.close()
    assert ContinuousBatchProcessor.update_batch is host


def test_a_manager_that_runs_already_is_recorded_from_now_on(manager, run, rows):
    loop = manager.start()
    loop.inbox = [State("a", [1], max_new_tokens=3)]
    manager.run()
    assert loop.prepare_next_batch()
    engine = transformers_cb.instrument(manager, run)
    loop._generation_step(None)
    loop.update_batch()
    manager.run()
    assert [row["decode_tokens"] for row in rows("engine_steps")] == [1]
    assert [row["output_tokens"] for row in rows("samples")] == [1]
    assert run.faults.counts == {}
    engine.close()


def test_samples_are_left_to_a_framework_s_hook_where_that_is_wished(manager, run, rows, monkeypatch):
    monkeypatch.setenv("RLSCOPE_SAMPLES", "framework")
    engine = transformers_cb.instrument(manager, run)
    loop = manager.start()
    loop.inbox = [State("a", [1], max_new_tokens=1)]
    manager.run()
    assert (rows("samples"), len(rows("engine_steps"))) == ([], 1)
    assert engine.versions_of("a") == ((0, 0, 1),)
    engine.close()


def test_without_a_run_folder_nothing_is_watched(manager):
    host = ContinuousBatchProcessor.update_batch
    engine = transformers_cb.instrument(manager, rlscope_otel.start_run(None))
    assert ContinuousBatchProcessor.update_batch is host
    with engine.apply(3):
        pass
    assert engine.version == 3
