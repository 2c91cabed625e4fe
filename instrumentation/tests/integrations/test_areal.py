"""AReaL's hooks on classes shaped like those of areal 1.0.4; tests/pipelines/frameworks runs the real ones."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rlscope_otel import start_run
from rlscope_otel.integrations import areal, areal_workers
from rlscope_otel.integrations.areal_workers import WORKERS, Workers

from tests.manual_clock import ManualClock

SECOND_NS = 1_000_000_000
CONFIG = SimpleNamespace(max_head_offpolicyness=2, consumer_batch_size=4, max_concurrent_rollouts=None)


class RemoteInfEngine:
    async def agenerate(self, req: Any) -> Any:
        if isinstance(req.answer, BaseException):
            raise req.answer
        return SimpleNamespace(output_versions=req.answer, stop_reason=req.stop_reason)

    def get_version(self) -> int:
        return 0


class StalenessManager:
    def __init__(self, engine: RemoteInfEngine) -> None:
        self.version_provider = engine
        self.running, self.capacity = 0, 1

    def get_stats(self) -> Any:
        return SimpleNamespace(running=self.running)

    def get_capacity(self) -> int:
        return self.capacity

    def on_rollout_submitted(self) -> None:
        self.running += 1

    def on_rollout_accepted(self) -> None:
        self.running -= 1


class BatchTaskDispatcher:
    def __init__(self, manager: StalenessManager) -> None:
        self.staleness_manager = manager

    def active_submit_and_wait(self, results: list[Any]) -> list[Any]:
        return results

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class WorkflowExecutor:
    def __init__(self, config: Any) -> None:
        self.config = config

    def initialize(self) -> None: ...

    def _create_workflow_task(self, pending_task: Any) -> Any:
        async def execute() -> None:
            context.current = SimpleNamespace(task_id=pending_task.task_id, is_eval=pending_task.is_eval)
            executor = sys.modules["areal.infra.workflow_executor"]
            try:
                results = await pending_task.workflow.arun_episode(pending_task.engine, pending_task.data)
            except ValueError:
                executor.trace_session_event("mark_finalized", task_id=pending_task.task_id, status="failed")
                return
            status = "accepted" if pending_task.accept and results else "rejected"
            executor.trace_session_event("mark_finalized", task_id=pending_task.task_id, status=status)

        return execute


class GroupedRolloutWorkflow:
    def __init__(self, workflow: Any, group_size: int) -> None:
        self.workflow, self.group_size = workflow, group_size

    async def arun_episode(self, engine: Any, data: list[Any]) -> list[Any]:
        episodes = [self.workflow.arun_episode(engine, row) for row in data]
        return [result for result in await asyncio.gather(*episodes) if result is not None]


def trace_session_event(method: str, session_id: int | None = None, task_id: int | None = None, **payload: Any): ...


context = SimpleNamespace(current=SimpleNamespace(task_id=None, is_eval=False))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ns=1_000 * SECOND_NS)


@pytest.fixture
def host(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, load: Callable[..., Any]
) -> SimpleNamespace:
    """AReaL is loaded and watched, an executor has begun; the worker's clock is ours."""
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "t")
    fresh = Workers()
    monkeypatch.setattr(WORKERS, "__dict__", fresh.__dict__)
    for state in ("EPISODES", "_rollouts"):
        before = getattr(areal_workers, state)
        monkeypatch.setattr(before, "__dict__", type(before)().__dict__)
    started = partial(areal_workers.started_run, clock=clock, flush_interval_s=3600)
    monkeypatch.setattr(areal_workers, "started_run", started)
    modules = {
        "areal.infra.workflow_executor": (WorkflowExecutor, BatchTaskDispatcher, trace_session_event),
        "areal.infra.remote_inf_engine": (RemoteInfEngine,),
        "areal.infra.staleness_manager": (StalenessManager,),
    }
    made: dict[str, Any] = {}
    for name, members in modules.items():
        own = {each.__name__: type(each.__name__, (each,), {}) if isinstance(each, type) else each for each in members}
        load(name, **own)
        made |= own
    load("areal.infra.workflow_context", get=lambda: context.current)
    load("areal.utils.stats_tracker", record_timing=scope)
    areal.instrument(rollout_gpus=8)
    made["WorkflowExecutor"](CONFIG).initialize()
    engine = made["RemoteInfEngine"]()
    manager = made["StalenessManager"](engine)
    return SimpleNamespace(engine=engine, manager=manager, dispatcher=made["BatchTaskDispatcher"](manager), **made)


@contextlib.contextmanager
def scope(key: str) -> Iterator[str]:
    yield f"AReaL's own {key}"


class Workflow:
    async def arun_episode(self, engine: RemoteInfEngine, requests: Any) -> Any:
        for request in requests:
            await engine.agenerate(request)
        return None if any(request.stop_reason == "abort" for request in requests) else requests


class Overriding(Workflow):
    async def arun_episode(self, engine: RemoteInfEngine, requests: Any) -> Any:
        return await super().arun_episode(engine, requests)


def request(answer: Any, stop_reason: str = "stop") -> SimpleNamespace:
    return SimpleNamespace(input_ids=[0], answer=answer, stop_reason=stop_reason)


def run_task(
    host: SimpleNamespace, number: int, *episodes: Any, accept: bool = True, is_eval: bool = False, **how: Any
):
    workflow = GroupedRolloutWorkflow(how.get("workflow", type("Own", (Workflow,), {}))(), len(episodes))
    task = SimpleNamespace(
        task_id=number, is_eval=is_eval, workflow=workflow, data=list(episodes), engine=host.engine, accept=accept
    )
    asyncio.run(host.WorkflowExecutor(CONFIG)._create_workflow_task(task)())


def take(host: SimpleNamespace, *tasks: tuple[int, list[float]]) -> None:
    results = [
        SimpleNamespace(task_id=number, trajectory={"rewards": np.array(rewards), "attention_mask": np.array([5, 7])})
        for number, rewards in tasks
    ]
    host.dispatcher.active_submit_and_wait(results)


def test_a_run_that_no_longer_records_is_not_taken_for_the_trainer_s(host, tmp_path):
    other = start_run(tmp_path / "other", "trainer", "gone")
    other.abandon()
    WORKERS.trainer.stop()
    assert WORKERS.trainer.worker_id == "t.r1"
    other.stop()


def test_episodes_of_a_group_are_samples_of_their_own_whatever_class_they_run(host, rows):
    run_task(host, 9, [request([0])], [request([0, 0])], workflow=Overriding)
    run_task(host, 10, [request([0, 0, 0])], workflow=Workflow)
    assert [(r["sample_id"], r["output_tokens"]) for r in rows("samples")] == [
        ("t.rollout/9/0", 1),
        ("t.rollout/9/1", 2),
        ("t.rollout/10/0", 3),
    ]


def test_an_evaluation_is_not_recorded(host, rows):
    run_task(host, 9, [request([0])], is_eval=True)
    assert rows("samples") == []


def test_an_episode_that_returned_nothing_has_no_row_in_what_is_trained(host, rows):
    run_task(host, 9, [request([3])], [request([3], stop_reason="abort")], [request([4])])
    take(host, (9, [0.5, 1.0]))
    assert [(d["sample_id"], d["outcome"], d["reward"]) for d in rows("deliveries")] == [
        ("t.rollout/9/1", "filtered", None),
        ("t.rollout/9/0", "trained", 0.5),
        ("t.rollout/9/2", "trained", 1.0),
    ]


def test_a_rejected_task_is_filtered_and_a_failed_one_abandoned(host, rows):
    run_task(host, 9, [request([0])], [request([0])], accept=False)
    run_task(host, 10, [request([0])], [request(ValueError("the host's own"))])
    assert [(d["sample_id"], d["outcome"]) for d in rows("deliveries")] == [
        ("t.rollout/9/0", "filtered"),
        ("t.rollout/9/1", "filtered"),
        ("t.rollout/10/0", "abandoned"),
        ("t.rollout/10/1", "abandoned"),
    ]
    assert [r["finish_reason"] for r in rows("samples")] == ["stop", "stop", "stop", "error"]


def test_a_task_that_another_process_ran_is_delivered_by_its_rows(host, rows):
    WORKERS.single_controller = True
    take(host, (9, [0.5, 1.0]))
    assert [(d["sample_id"], d["reward"]) for d in rows("deliveries")] == [("9/0", 0.5), ("9/1", 1.0)]


def test_other_scopes_of_the_trainer_are_states_too_and_areal_s_own_timing_runs_inside(host, rows):
    for name in ("critic_train_step", "eval", "clear_batches"):
        with sys.modules["areal.utils.stats_tracker"].record_timing(name) as own:
            assert own == f"AReaL's own {name}"
    assert [a["activity"] for a in rows("activities")] == ["train", "eval", "other"]


def test_a_scope_that_fails_is_no_state_and_areal_sees_its_own_error(host, rows):
    with pytest.raises(OSError, match="disk"), sys.modules["areal.utils.stats_tracker"].record_timing("save"):
        raise OSError("disk")
    assert rows("activities") == []


@pytest.mark.parametrize(
    ("capacity", "paused", "reason"),
    [(1, False, "requests"), (0, False, "staleness_cap"), (0, True, "weights")],
)
def test_without_a_running_rollout_they_wait_for_what_holds_them(host, rows, clock, capacity, paused, reason):
    host.manager.on_rollout_submitted()
    clock.advance(2 * SECOND_NS)
    host.manager.capacity = capacity
    if paused:
        host.dispatcher.pause()
    host.manager.on_rollout_accepted()
    clock.advance(SECOND_NS)
    host.dispatcher.resume()
    host.manager.on_rollout_submitted()
    found = [(a["activity"], a["reason"], a["end_ns"] - a["start_ns"]) for a in rows("activities")]
    assert [row for row in found if row[2]] == [("generate", None, 2 * SECOND_NS), ("wait", reason, SECOND_NS)]


def test_without_a_limit_of_their_own_as_many_groups_run_as_a_batch_takes():
    assert areal_workers._settings(CONFIG)["areal_max_concurrent_groups"] == 4
