"""The hooks on objects shaped as in the source of SGLang 0.5.23: what they read of its objects, in the order in which
its scheduler calls them. SGLang itself does not install on a machine without a GPU."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from rlscope_otel import Run, start_run
from rlscope_otel.integrations import sglang
from rlscope_otel.integrations.request_ids import RequestName, request_id_of

from tests.manual_clock import ManualClock

MS = 1_000_000
SCHEDULER = "sglang.srt.managers.scheduler"
UPDATER = f"{SCHEDULER}_components.weight_updater"


@dataclass(eq=False)
class Req:
    rid: str
    origin_input_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    output_ids: list[int] = field(default_factory=list)
    finished_reason: Any = None
    finished_len: int | None = None
    retraction_count: int = 0
    cached_tokens: int = 0

    def finished(self) -> bool:
        return self.finished_reason is not None


class Batch:
    def __init__(self, *reqs: Req, extend_num_tokens: int | None = None) -> None:
        self.reqs, self.extend_num_tokens = list(reqs), extend_num_tokens
        self.forward_mode = SimpleNamespace(is_extend=lambda: extend_num_tokens is not None)


def scheduler_module(clock: ManualClock) -> tuple[type, type]:
    class Scheduler:
        def __init__(self) -> None:
            self.max_total_num_tokens, self.max_running_requests = 1000, 64
            self.waiting_queue: list[Req] = []
            self.running_batch = Batch()
            self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: 900)
            self.tree_cache = SimpleNamespace(evictable_size=lambda: 60)
            self.weight_updater = Updater(self)

        def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
            self.waiting_queue.append(req)

        def run_batch(self, batch: Batch, pp_proxy_tensors: object = None) -> str:
            return "result"

        def process_batch_result(self, batch: Batch, result: object) -> None:
            clock.advance(5 * MS)
            for req in batch.reqs:
                req.output_ids.append(7)

        def on_idle(self) -> None:
            clock.advance(MS)

        def send_abort_output(self, abort_req: object, req: Req) -> None: ...
        def pause_generation(self, recv_req: Any) -> None: ...
        def continue_generation(self, recv_req: Any) -> None: ...
        def record_weight_version_change(self, new_version: str | None) -> None: ...

    class Updater:
        def __init__(self, scheduler: Scheduler) -> None:
            self.scheduler = scheduler

        def begin_weight_update(self, recv_req: Any) -> Any:
            return SimpleNamespace(success=True)

        def update_weights_from_disk(self, recv_req: Any) -> Any:
            clock.advance(20 * MS)
            if recv_req.succeeds:
                self.scheduler.record_weight_version_change(recv_req.weight_version)
            return SimpleNamespace(success=recv_req.succeeds)

        end_weight_update = begin_weight_update
        update_weights_from_distributed = update_weights_from_tensor = update_weights_from_disk

    return Scheduler, Updater


@pytest.fixture
def host(run_dir, clock: ManualClock, load) -> Any:
    """The modules that the hooks are registered for, and a run that is already recording."""
    scheduler, updater = scheduler_module(clock)
    load(UPDATER, SchedulerWeightUpdaterManager=updater)
    return load(SCHEDULER, Scheduler=scheduler)


@pytest.fixture
def run(tmp_path, clock: ManualClock) -> Run:
    return start_run(tmp_path, "sampler", "s0", clock=clock, flush_interval_s=3600)


@pytest.fixture
def scheduler(host, run: Run) -> Any:
    return hooked(host)


def hooked(host: Any) -> Any:
    """A scheduler of the host whose functions are hooked."""
    sglang.register()
    return host.Scheduler()


def step(scheduler: Any, batch: Batch, clock: ManualClock, *finishes: Req, launch_ms: int = 1) -> None:
    clock.advance(launch_ms * MS)
    result = scheduler.run_batch(batch)
    for req in finishes:
        req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
    scheduler.process_batch_result(batch, result)


def update(weight_version: str | None, *, flush_cache: bool = True, succeeds: bool = True) -> Any:
    return SimpleNamespace(weight_version=weight_version, flush_cache=flush_cache, succeeds=succeeds)


def runs_of(row: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [(run["version"], run["start"], run["end"]) for run in row["versions"]]


def test_each_batch_is_a_row_and_passes_that_follow_each_other_leave_only_the_time_between(scheduler, clock, columns):
    first, second = Req("a"), Req("b")
    scheduler._add_request_to_queue(first)
    step(scheduler, Batch(first, extend_num_tokens=3), clock)
    step(scheduler, Batch(first, second), clock, launch_ms=2)
    assert columns("engine_steps", "start_ns", "end_ns", "busy_ns", "running", "decode_tokens", "prefill_tokens") == [
        (2 * MS, 7 * MS, 5 * MS, 1, 1, 3),
        (7 * MS, 14 * MS, 5 * MS, 2, 2, 0),
    ]
    assert columns("engine_steps", "waiting", "kv_used_tokens", "forward_passes", "source") == [(1, 40, 1, None)] * 2


def test_batches_that_overlap_share_no_time(scheduler, clock, columns):
    one, two = Batch(Req("a")), Batch(Req("b"))
    scheduler.run_batch(one)
    clock.advance(MS)
    scheduler.run_batch(two)
    scheduler.process_batch_result(one, None)
    scheduler.process_batch_result(two, None)
    assert columns("engine_steps", "start_ns", "end_ns", "busy_ns") == [
        (MS, 7 * MS, 6 * MS),
        (7 * MS, 12 * MS, 5 * MS),
    ]


@pytest.mark.parametrize(("pause_ms", "start_ms"), [(1000, 6), (1001, 1007)])
def test_more_than_a_second_between_two_batches_is_not_time_between_passes(
    pause_ms, start_ms, scheduler, clock, columns
):
    batch = Batch(Req("a"))
    step(scheduler, batch, clock, launch_ms=0)
    step(scheduler, batch, clock, launch_ms=pause_ms)
    assert columns("engine_steps", "start_ns")[1] == (start_ms * MS,)


def test_a_sample_has_the_version_of_each_token_and_the_name_in_its_request_id(scheduler, clock, rows, columns):
    req = Req(request_id_of(RequestName("step3/17", "prompt-2")), cached_tokens=2)
    scheduler._add_request_to_queue(req)
    step(scheduler, Batch(req, extend_num_tokens=3), clock)
    step(scheduler, Batch(req), clock)
    scheduler.running_batch = Batch(req)
    scheduler.weight_updater.update_weights_from_disk(update("1"))
    step(scheduler, Batch(req), clock, req)
    assert runs_of(rows("samples")[0]) == [(0, 0, 2), (1, 2, 3)]
    named = columns("samples", "sample_id", "group_id", "segment", "version_source", "finish_reason")
    assert named == [("step3/17", "prompt-2", 0, "engine", "length")]
    counted = columns("samples", "submitted_ns", "started_ns", "prompt_tokens", "cached_tokens")
    assert counted == [(MS, 2 * MS, 3, 2)]


def test_tokens_after_the_stop_are_not_counted(scheduler, clock, columns):
    req = Req("a", output_ids=[5, 5, 5], finished_len=2)
    step(scheduler, Batch(req), clock, req)
    assert columns("samples", "output_tokens") == [(2,)]
    assert columns("engine_steps", "decode_tokens") == [(2,)]


def test_aborted_running_and_health_check_requests(scheduler, run, clock, columns):
    aborted, running, check = Req("a"), Req("b"), Req("HEALTH_CHECK_1")
    step(scheduler, Batch(aborted, running, check), clock, check)
    scheduler.send_abort_output(None, aborted)
    run.stop()
    assert columns("samples", "sample_id", "finish_reason") == [("a", "abort"), ("b", "unfinished")]
    assert columns("engine_steps", "decode_tokens") == [(3,)]


def test_the_trainers_own_samples_are_not_recorded_a_second_time(host, run, clock, rows, columns, monkeypatch):
    monkeypatch.setenv("RLSCOPE_SAMPLES", "framework")
    req = Req("a")
    step(hooked(host), Batch(req), clock, req)
    assert (rows("samples"), columns("engine_steps", "decode_tokens")) == ([], [(1,)])


@pytest.mark.parametrize(
    ("mode", "flush_cache", "runs_on", "kv"),
    [
        ("in_place", True, True, "kept"),
        ("retract", True, True, "recomputed"),
        ("retract", False, True, "kept"),
        ("in_place", True, False, "recomputed"),
        ("in_place", False, False, "kept"),
    ],
)
def test_an_update_in_a_pause_says_what_became_of_the_kv_cache(
    mode, flush_cache, runs_on, kv, scheduler, clock, columns
):
    scheduler.running_batch = Batch(Req("a")) if runs_on else Batch()
    scheduler.pause_generation(SimpleNamespace(mode=mode))
    clock.advance(3 * MS)
    scheduler.weight_updater.update_weights_from_disk(update("3", flush_cache=flush_cache))
    clock.advance(2 * MS)
    scheduler.continue_generation(SimpleNamespace())
    step(scheduler, Batch(Req("a")), clock)
    assert columns("weight_updates", "phase", "version", "label", "start_ns", "end_ns", "paused", "kv") == [
        ("apply", 3, "3", 4 * MS, 24 * MS, True, kv),
        ("drain", 3, None, MS, 4 * MS, None, None),
        ("resume", 3, None, 24 * MS, 26 * MS, None, None),
    ]
    assert columns("activities", "activity", "reason", "start_ns", "end_ns") == [("wait", "weights", MS, 26 * MS)]


def test_loads_of_one_session_are_one_update_and_tokens_of_passes_in_it_are_torn(scheduler, clock, rows, columns):
    req = Req("a")
    updater, batch = scheduler.weight_updater, Batch(req)
    step(scheduler, batch, clock, launch_ms=0)
    updater.begin_weight_update(SimpleNamespace())
    updater.update_weights_from_tensor(update(None))
    step(scheduler, batch, clock, launch_ms=0)
    updater.update_weights_from_tensor(update("1"))
    clock.advance(MS)
    updater.end_weight_update(SimpleNamespace())
    step(scheduler, batch, clock, req, launch_ms=0)
    assert columns("weight_updates", "version", "paused", "start_ns", "end_ns") == [(1, False, 6 * MS, 52 * MS)]
    (sample,) = rows("samples")
    assert (runs_of(sample), sample["torn_tokens"]) == ([(0, 0, 2), (1, 2, 3)], 1)


def test_updates_without_a_label_are_counted_and_a_label_given_before_the_next_pass_is_theirs(
    scheduler, run, clock, columns
):
    updater = scheduler.weight_updater
    updater.update_weights_from_disk(update(None))
    step(scheduler, Batch(Req("a")), clock)
    updater.begin_weight_update(SimpleNamespace())
    updater.update_weights_from_distributed(update(None))
    updater.end_weight_update(SimpleNamespace())
    scheduler.record_weight_version_change(new_version="2")
    step(scheduler, Batch(Req("b")), clock)
    updater.update_weights_from_disk(update(None))
    step(scheduler, Batch(Req("c")), clock)
    run.stop()
    assert columns("weight_updates", "version", "label") == [(1, None), (2, "2"), (3, None)]
    sources = columns("samples", "sample_id", "version_source", "torn_tokens")
    assert sources == [("a", "time_join", None), ("b", "engine", None), ("c", "time_join", None)]


def test_a_load_that_failed_is_no_version(scheduler, run, clock, rows):
    scheduler.weight_updater.update_weights_from_disk(update("1", succeeds=False))
    step(scheduler, Batch(Req("a")), clock)
    run.stop()
    assert rows("weight_updates") == []
    assert runs_of(rows("samples")[0]) == [(0, 0, 1)]


def test_idle_time_is_a_wait_for_requests_and_a_stall_is_not(scheduler, clock, columns):
    for _ in range(3):
        scheduler.on_idle()
    step(scheduler, Batch(Req("a")), clock, launch_ms=0)
    scheduler.waiting_queue.append(Req("b"))
    for _ in range(3):
        scheduler.on_idle()
    step(scheduler, Batch(Req("b")), clock, launch_ms=0)
    assert columns("activities", "reason", "start_ns", "end_ns") == [("requests", MS, 4 * MS)]


def test_a_long_idle_time_is_written_every_second(scheduler, clock, columns):
    for _ in range(3):
        scheduler.on_idle()
        clock.advance(999 * MS)
    assert columns("activities", "start_ns", "end_ns") == [(MS, 1001 * MS), (1001 * MS, 2001 * MS)]


@pytest.mark.parametrize(
    ("ranks", "recorded"),
    [
        ({"tp_rank": 0, "pp_rank": 0}, True),
        ({"tp_rank": 1, "pp_rank": 0}, False),
        ({"tp_rank": 0, "pp_rank": 1}, False),
        ({"tp_rank": 4, "pp_rank": 0, "attn_tp_rank": 0, "attn_cp_rank": 0}, True),
        ({"tp_rank": 4, "pp_rank": 0, "attn_tp_rank": 0, "attn_cp_rank": 1}, False),
    ],
)
def test_only_the_rank_that_speaks_for_its_engine_is_recorded(ranks, recorded, host, run, clock, rows, load):
    load("sglang.srt.runtime_context", get_parallel=lambda: SimpleNamespace(tp_size=8, pp_size=1, **ranks))
    step(hooked(host), Batch(Req("a")), clock)
    assert len(rows("engine_steps")) == recorded


def test_a_run_of_its_own_knows_the_engine_s_gpus_and_what_it_holds(host, monkeypatch, worker, load):
    parallel = SimpleNamespace(tp_size=8, pp_size=2, tp_rank=0, pp_rank=0, attn_tp_rank=0, attn_dp_size=4)
    load("sglang.srt.runtime_context", get_parallel=lambda: parallel)
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "s1")
    sglang._recorders[hooked(host)].run.stop()
    found = worker("s1")
    assert (found["role"], found["gpu_count"], found["framework"]) == ("sampler", 4, "sglang")
    assert (found["kv_capacity_tokens"], found["max_running"]) == (1000, 64)
