"""prime-rl's hooks on objects shaped as at its commit 559b447 and in verifiers 0.4.0; nothing of it is run."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import rlscope_otel
from rlscope_otel import ManualClock, Run
from rlscope_otel.integrations import loading, prime_rl
from rlscope_otel.integrations.prime_rl import RlscopeMonitor, RlscopeVersionObserver

Rows = Callable[..., list[dict[str, Any]]]
SECOND_NS = 1_000_000_000
NOW_S = 1_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ns=int(NOW_S) * SECOND_NS)


@pytest.fixture
def recording(tmp_path: Path, clock: ManualClock) -> Run:
    run = rlscope_otel.start_run(tmp_path, "colocated", "w", clock=clock, flush_interval_s=3600)
    clock.advance(100 * SECOND_NS)
    return run


def episode(*traces: SimpleNamespace, start: int = 3, end: int = 4, frozen: bool = False) -> SimpleNamespace:
    policy = None if frozen else SimpleNamespace(start=start, end=end)
    work = SimpleNamespace(type="train", step=5, policy=policy)
    return SimpleNamespace(traces=list(traces), group=SimpleNamespace(id="g"), run=SimpleNamespace(work=work))


def trace(name: str, tokens: int, ok: bool = True) -> SimpleNamespace:
    span = SimpleNamespace(start=NOW_S + 1.5, end=NOW_S + 4.25)
    return SimpleNamespace(
        id=name,
        num_input_tokens=11,
        num_output_tokens=tokens,
        has_error=not ok,
        reward=0.5,
        timing=SimpleNamespace(agent=span),
    )


def log(*logged: tuple[Any, ...]) -> None:
    monitor = RlscopeMonitor()

    async def all_of_it() -> None:
        for arguments in logged:
            await monitor.log(*arguments)

    asyncio.run(all_of_it())


def test_a_trace_is_a_sample_of_the_version_at_which_its_group_was_opened(recording: Run, rows: Rows):
    log(([episode(trace("a", 7), trace("b", 0, ok=False))], 5, "train", "all"))
    first, failed = rows("samples")
    assert (first["sample_id"], first["group_id"], first["prompt_tokens"], first["output_tokens"]) == ("a", "g", 11, 7)
    assert first["versions"] == [{"version": 3, "start": 0, "end": 7}]
    assert (first["version_source"], first["finish_reason"]) == ("admission", "stop")
    assert (first["submitted_ns"], first["finished_ns"]) == (1_001_500_000_000, 1_004_250_000_000)
    assert (failed["sample_id"], failed["output_tokens"], failed["finish_reason"]) == ("b", 0, "error")
    assert [(d["sample_id"], d["outcome"]) for d in rows("deliveries")] == [("b", "filtered")]


def test_what_a_frozen_model_generated_is_no_sample_of_the_policy(recording: Run, rows: Rows):
    log(([episode(trace("a", 7), frozen=True)], 5, "train", "all"), ([episode(trace("b", 7))], 5, "eval", "all"))
    assert rows("samples") == []


def test_a_shipped_batch_is_trained_on_the_weights_before_its_step(recording: Run, rows: Rows):
    log(([episode(trace("a", 7))], 6, "train", "effective"))
    assert [
        (d["sample_id"], d["outcome"], d["step"], d["consumer_version"], d["reward"]) for d in rows("deliveries")
    ] == [("a", "trained", 6, 5, 0.5)]


TIMES = {
    "time/step": 11.0,
    "time/wait_for_batch": 4.0,
    "time/load_data": 0.5,
    "time/forward_backward": 3.0,
    "time/broadcast_weights": 2.0,
    "time/save_ckpt": 1.0,
}


def test_the_times_of_a_step_lie_back_to_back_before_its_row(recording: Run, rows: Rows):
    log(({"optim/grad_norm": 2.0}, 6), ({"loss/mean": 0.25, "entropy/all/mean": 1.5}, 6), (TIMES, 6))
    end_ns = recording.now_ns()
    (step,) = rows("train_steps")
    assert (step["step"], step["version_in"], step["version_out"]) == (6, 5, 6)
    assert (step["loss"], step["entropy"], step["grad_norm"]) == (0.25, 1.5, 2.0)
    spans = [(a["activity"], a["reason"], end_ns - a["start_ns"], end_ns - a["end_ns"]) for a in rows("activities")]
    assert spans == [
        ("wait", "samples", 10_500_000_000, 6_500_000_000),
        ("other", None, 6_500_000_000, 6_000_000_000),
        ("checkpoint", None, SECOND_NS, 0),
    ]
    assert (end_ns - step["start_ns"], end_ns - step["end_ns"]) == (6 * SECOND_NS, 3 * SECOND_NS)
    (published,) = rows("weight_updates")
    assert (published["phase"], published["version"]) == ("publish", 6)
    assert (end_ns - published["start_ns"], end_ns - published["end_ns"]) == (3 * SECOND_NS, SECOND_NS)


def test_a_step_that_broadcasts_nothing_publishes_nothing_and_keeps_no_metrics_for_the_next(recording: Run, rows: Rows):
    quiet = {**TIMES, "time/broadcast_weights": 0, "time/save_ckpt": 0}
    log(({"loss/mean": 0.25}, 6), (quiet, 6), (quiet, 7))
    assert [(s["step"], s["version_out"], s["loss"]) for s in rows("train_steps")] == [(6, 5, 0.25), (7, 6, None)]
    assert rows("weight_updates") == []
    assert {a["activity"] for a in rows("activities")} == {"wait", "other"}


@pytest.mark.parametrize(("held_s", "expected"), [(3.0, [("staleness_cap", 6 * SECOND_NS, 3 * SECOND_NS)]), (0.0, [])])
def test_a_batch_that_is_held_for_the_trainer_waits_at_the_cap(
    recording: Run, rows: Rows, held_s: float, expected: list[Any]
):
    log(({"time/wait_for_policy": held_s, "time/pack": 2.0, "time/save_ckpt": 1.0, "step": 6}, 6))
    now_ns = recording.now_ns()
    assert [(a["reason"], now_ns - a["start_ns"], now_ns - a["end_ns"]) for a in rows("activities")] == expected


def test_weights_are_applied_from_the_pause_to_the_new_version(recording: Run, rows: Rows, clock: ManualClock):
    observer = RlscopeVersionObserver()
    asyncio.run(observer.on_version_pending(4))
    clock.advance(2 * SECOND_NS)
    asyncio.run(observer.on_new_version(4))
    (update,) = rows("weight_updates")
    assert (update["phase"], update["version"], update["label"], update["paused"]) == ("apply", 4, "4", True)
    assert update["end_ns"] - update["start_ns"] == 2 * SECOND_NS


def test_what_cannot_be_read_is_counted_and_not_raised(recording: Run, rows: Rows):
    log(([SimpleNamespace(traces=[object()])], 5, "train", "all"), ({"time/wait_for_batch": None}, 6))
    assert prime_rl._faults.counts["monitor"] >= 2


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """prime-rl's places, loaded, with a fresh start of ours."""
    monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(loading, "_awaited", set())
    monitors, watcher, orchestrator = (
        ModuleType(f"prime_rl.{name}") for name in ("monitors", "orchestrator.watcher", "orchestrator.orchestrator")
    )

    async def setup(**config: Any) -> None:
        monitors.MONITORS.append("prime-rl's own")

    class WeightWatcher:
        def __init__(self, config: Any, *, observers: list[Any]) -> None:
            self.observers = observers

    class Orchestrator:
        def __init__(self, config: Any) -> None:
            self.config = config

    monitors.MONITORS, monitors.setup = [], setup
    watcher.WeightWatcher, orchestrator.Orchestrator = WeightWatcher, Orchestrator
    for module in (monitors, watcher, orchestrator):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return {"monitors": monitors, "watcher": watcher, "orchestrator": orchestrator}


@pytest.mark.parametrize(("rank", "added"), [("0", True), ("1", False)])
def test_the_monitor_comes_after_prime_rl_s_own_and_on_the_first_rank_only(
    host: dict[str, Any], monkeypatch: pytest.MonkeyPatch, rank: str, added: bool
):
    monkeypatch.setenv("RANK", rank)
    prime_rl.install()
    prime_rl.install()
    asyncio.run(host["monitors"].setup())
    assert [isinstance(m, RlscopeMonitor) for m in host["monitors"].MONITORS] == [False] + [True] * added


def test_the_observer_and_the_cap_come_from_the_orchestrator(host: dict[str, Any], tmp_path: Path):
    prime_rl.install()
    host["orchestrator"].Orchestrator(SimpleNamespace(max_off_policy_steps=8))
    watcher = host["watcher"].WeightWatcher(None, observers=["dispatcher"])
    assert [isinstance(o, RlscopeVersionObserver) for o in watcher.observers] == [False, True]
    config = json.loads((tmp_path / "run.json").read_text())["config"]
    assert config == {"framework": "prime-rl", "staleness_policy": "drop", "max_staleness": 8}
