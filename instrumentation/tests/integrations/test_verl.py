"""verl's hooks on classes shaped like those of verl 0.9.1; tests/pipelines/frameworks runs the real ones."""

import asyncio
import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import rlscope_otel
from rlscope_otel import Run
from rlscope_otel.integrations import verl, verl_actors
from rlscope_otel.integrations.host import own_run

from tests.manual_clock import ManualClock

Rows = Callable[..., list[dict[str, Any]]]
SECOND_NS = 1_000_000_000
CONFIG = {
    "actor_rollout_ref": {
        "actor": {"ppo_mini_batch_size": 8},
        "rollout": {"name": "trtllm", "n": 2, "response_length": 64},
    },
    "async_training": {"staleness_threshold": 0.5, "require_batches": 2},
    "trainer": {"nnodes": 2, "n_gpus_per_node": 8, "test_freq": 2},
    "rollout": {"nnodes": 1, "n_gpus_per_node": 4},
}


class TokenOutput:
    def __init__(self, tokens: int, version: int | None, stop_reason: str = "completed", **extra: int) -> None:
        self.token_ids = [7] * tokens
        self.stop_reason = stop_reason
        self.num_preempted = -1
        self.extra_fields = {"global_steps": version, **extra}


class LLMServerClient:
    def __init__(self, *outputs: TokenOutput | BaseException) -> None:
        self.outputs = list(outputs)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        output = self.outputs.pop(0)
        if isinstance(output, BaseException):
            raise output
        return output


class AgentLoopWorker:
    def __init__(self, config: Any, llm_client: LLMServerClient) -> None:
        self.client = llm_client

    async def generate_sequences(self, batch: list[str], validate: bool = False, **params: Any) -> None:
        loops = [self._run_agent_loop(params, {"validate": validate}, agent_name="one", uid=uid) for uid in batch]
        await asyncio.gather(*map(asyncio.create_task, loops))

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, agent_name: str, uid: str
    ) -> None:
        await self.client.generate("request", prompt_ids=[1, 2, 3], sampling_params=sampling_params)


class FullyAsyncRollouter:
    def __init__(self, config: Any) -> None:
        self.paused = False
        self.staleness_samples, self.max_required_samples = 5, 6
        self.idle_start_time = 0.0

    async def _streaming_generation_main(self) -> None: ...

    async def _should_pause_generation(self) -> bool:
        return self.staleness_samples >= self.max_required_samples

    async def reset_staleness(self) -> None:
        self.paused = False

    def do_validate(self) -> None:
        CLOCK.advance(SECOND_NS)


class FullyAsyncTrainer:
    def __init__(self, config: Any) -> None:
        self.config = config
        self.global_steps, self.current_param_version = 3, 1
        self.local_trigger_step, self.trigger_parameter_sync_step = 2, 2
        self.use_critic = self.use_reference_policy = False
        self.timing_raw: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self.reward_tensor = None

    async def _fit_validate(self, val_before_train: bool = False) -> None:
        CLOCK.advance(SECOND_NS)

    def _fit_update_actor(self, batch: Any) -> None: ...
    def _fit_compute_reward(self, batch: Any) -> None: ...
    def _fit_compute_log_prob(self, batch: Any) -> None: ...
    def _fit_compute_ref_log_prob(self, batch: Any) -> None: ...
    def _fit_compute_critic(self, batch: Any) -> None: ...
    def _fit_compute_advantage(self, batch: Any) -> None: ...
    def _fit_update_critic(self, batch: Any) -> None: ...
    def _save_checkpoint(self) -> None: ...


class Batch(list[int]):
    meta_info: ClassVar[dict[str, list[int]]] = {}


CLOCK = ManualClock(wall_ns=1_000 * SECOND_NS)
POLICY = "verl.experimental.fully_async_policy"
CLASSES = {
    "verl.workers.rollout.llm_server": LLMServerClient,
    "verl.experimental.agent_loop.agent_loop": AgentLoopWorker,
    f"{POLICY}.fully_async_rollouter": FullyAsyncRollouter,
    f"{POLICY}.fully_async_trainer": FullyAsyncTrainer,
}
OWN: dict[type, Any] = {}
"""The class that a test has instead of each of these, since hooks change classes."""


@pytest.fixture
def run_dir(run_dir: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> Path:
    """verl is loaded, and our module watches it; nothing records yet."""
    monkeypatch.setenv("RLSCOPE_SAMPLES", "engine")
    for name, each in CLASSES.items():
        own = OWN[each] = type(each.__name__, (each,), {})
        # Ray's decorator leaves a handle that knows the class.
        actor = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=own))
        load(name, **{each.__name__: actor if each in (FullyAsyncRollouter, FullyAsyncTrainer) else own})
    verl.activate()
    return run_dir


@pytest.fixture
def recording(run_dir: Path) -> Run:
    return rlscope_otel.start_run(role="colocated", worker_id="w", clock=CLOCK, flush_interval_s=3600)


def trainer_of() -> Any:
    return OWN[FullyAsyncTrainer](CONFIG)


def rollouter_of() -> Any:
    return OWN[FullyAsyncRollouter](CONFIG)


def generate(outputs: list[Any], uids: list[str], resume: bool = False, **how: Any) -> None:
    base = OWN[LLMServerClient]
    resuming = type("Resuming", (base,), {"generate": resumed})
    client = (resuming if resume else base)(*outputs)
    asyncio.run(OWN[AgentLoopWorker](CONFIG, client).generate_sequences(uids, **how))


async def resumed(self: Any, request_id: str, **request: Any) -> TokenOutput:
    base = type(self).__mro__[1]
    while True:
        output = await base.generate(self, request_id, **request)
        request["prompt_ids"] = request["prompt_ids"] + output.token_ids
        if output.stop_reason != "aborted":
            return output


def spans(rows: Rows, start_ns: int) -> list[tuple[Any, ...]]:
    """Activities that took time, in seconds since the start."""
    found = (
        (row["activity"], row["reason"], *((row[name] - start_ns) / SECOND_NS for name in ("start_ns", "end_ns")))
        for row in rows("activities")
    )
    return [each for each in found if each[3] > each[2]]


def test_each_request_is_a_segment_under_the_version_of_its_server(recording, columns):
    outputs = [TokenOutput(4, 2, "aborted"), TokenOutput(0, 2, "aborted"), TokenOutput(3, 3, num_cached_tokens=5)]
    generate(outputs, ["uid_sample_0_9"], resume=True)
    assert columns("samples", "segment", "prompt_tokens", "output_tokens", "finish_reason", "cached_tokens") == [
        (0, 3, 4, "abort", None),
        (1, 7, 0, "abort", None),
        (2, 7, 3, "stop", 5),
    ]
    same = columns("samples", "sample_id", "group_id", "version_source", "preemptions")
    assert same == [("uid_sample_0_9/0", "uid_sample_0_9", "segment", None)] * 3
    first, third = ({"version": 2, "start": 0, "end": 4}, {"version": 3, "start": 0, "end": 3})
    assert columns("samples", "versions") == [([first],), ([],), ([third],)]


@pytest.mark.parametrize(("tokens", "reason"), [(5, "stop"), (6, "length"), (7, "length")])
def test_a_request_that_used_its_whole_budget_ended_for_its_length(recording, columns, tokens, reason):
    generate([TokenOutput(tokens, 0)], ["uid_sample_0_1"], max_tokens=6)
    assert columns("samples", "finish_reason") == [(reason,)]


def test_a_request_that_failed_is_one_that_failed_and_verl_sees_its_own_error(recording, columns):
    with pytest.raises(OSError, match="server is gone"):
        generate([OSError("server is gone")], ["uid_sample_0_1"])
    assert columns("samples", "output_tokens", "finish_reason") == [(0, "error")]


@pytest.mark.parametrize(
    ("uids", "how"),
    [(["uid_sample_0_1"], {"validate": True}), (["uid_sample_0_1"], {"prompt_logprobs": 0}), (["7c9e"], {})],
    ids=["validation", "teacher", "another trainer"],
)
def test_what_is_not_a_sample_of_the_asynchronous_run_is_not_recorded(recording, rows, uids, how):
    generate([TokenOutput(4, 0)], uids, **how)
    assert rows("samples") == []


def test_a_group_is_named_only_by_a_string_of_its_own():
    pickled = map(pickle.dumps, ("uid_sample_0_17", b"uid_sample_0_17", "see uid_sample_0_17"))
    assert list(map(verl_actors.uid_in, (*pickled, None))) == ["uid_sample_0_17", None, None, None]


@pytest.mark.parametrize(("timing", "steps"), [({"update_actor": 1.0}, [(2,)]), ({}, [])])
def test_a_batch_is_a_step_unless_only_the_critic_warms_up(recording, columns, timing, steps):
    """verl times the update of the policy. This batch does not count its tokens."""
    trainer = trainer_of()
    trainer.timing_raw = timing
    trainer._fit_update_actor(Batch([1, 2]))
    assert columns("train_steps", "samples") == steps


def test_passes_that_are_switched_off_are_not_recorded(recording, rows):
    trainer = trainer_of()
    for name in ("reward", "log_prob", "ref_log_prob", "critic", "advantage"):
        getattr(trainer, f"_fit_compute_{name}")(None)
    trainer._fit_update_critic(None)
    trainer.use_critic = trainer.use_reference_policy = True
    for name in ("_fit_compute_ref_log_prob", "_fit_compute_critic", "_fit_update_critic"):
        getattr(trainer, name)(None)
    trainer._save_checkpoint()
    without, added = ["reward", "logprobs", "other"], ["logprobs", "logprobs", "train"]
    assert [a["activity"] for a in rows("activities")] == [*without, *added, "checkpoint"]


@pytest.mark.parametrize(
    ("version", "local_step", "before", "evaluated"),
    [(2, 1, False, True), (1, 1, False, False), (0, 1, False, False), (0, 1, True, True), (2, 2, False, False)],
)
def test_an_evaluation_is_one_only_when_it_is_time_for_it(recording, rows, version, local_step, before, evaluated):
    trainer = trainer_of()
    trainer.current_param_version, trainer.local_trigger_step = version, local_step
    asyncio.run(trainer._fit_validate(before))
    assert [a["activity"] for a in rows("activities")] == ["eval"] * evaluated


@pytest.mark.parametrize(("stale", "reason"), [(6, "staleness_cap"), (5, None)])
def test_a_rollouter_waits_from_its_last_task_to_the_new_weights(recording, rows, monkeypatch, stale, reason):
    monkeypatch.setattr(time, "time", lambda: recording.now_ns() / SECOND_NS)
    rollouter, start_ns = rollouter_of(), recording.now_ns()

    async def pass_a_version() -> None:
        await rollouter._streaming_generation_main()
        verl_actors._stretch.since_ns = start_ns
        CLOCK.advance(2 * SECOND_NS)
        rollouter.staleness_samples = stale
        rollouter.paused = await rollouter._should_pause_generation()
        if rollouter.paused:
            rollouter.idle_start_time = time.time()
        CLOCK.advance(3 * SECOND_NS)
        await rollouter.reset_staleness()

    asyncio.run(pass_a_version())
    paused = [("generate", None, 0, 2), ("wait", reason, 2, 5)]
    assert spans(rows, start_ns) == (paused if reason else [("generate", None, 0, 5)])


def test_a_pause_before_this_version_is_not_counted_again(recording, rows, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: recording.now_ns() / SECOND_NS)
    rollouter = rollouter_of()
    rollouter.idle_start_time = time.time()
    CLOCK.advance(SECOND_NS)
    start_ns = verl_actors._stretch.since_ns = recording.now_ns()
    CLOCK.advance(SECOND_NS)
    rollouter.paused = True
    asyncio.run(rollouter.reset_staleness())
    assert spans(rows, start_ns) == [("generate", None, 0, 1)]


def test_an_evaluation_of_the_rollouter_is_one(recording, rows):
    start_ns = recording.now_ns()
    rollouter_of().do_validate()
    assert spans(rows, start_ns) == [("eval", None, 0, 1)]


@pytest.mark.parametrize(
    ("start", "engines_are_recorded", "role", "gpu_count"),
    [(trainer_of, False, "trainer", 16), (rollouter_of, False, "sampler", 4), (rollouter_of, True, "controller", 0)],
    ids=["trainer", "rollouter", "rollouter of engines that record themselves"],
)
def test_each_side_owns_its_gpus_and_tells_the_settings(
    run_dir, monkeypatch, start, engines_are_recorded, role, gpu_count
):
    monkeypatch.setattr(verl_actors, "engines_are_recorded", lambda config: engines_are_recorded)
    start()
    own_run().flush()
    (found,) = [json.loads(path.read_text()) for path in (run_dir / "workers").glob("*.json")]
    assert (found["role"], found["gpu_count"], found["framework"]) == (role, gpu_count, "verl")
    config = json.loads((run_dir / "run.json").read_text())["config"]
    assert config == {
        "framework": "verl",
        "staleness_policy": "admission",
        "samples_per_step": 32,
        "group_size": 2,
        "max_output_tokens": 64,
        "verl_staleness_threshold_ratio": 0.5,
    }


@pytest.mark.parametrize(
    ("engine", "group", "told", "recorded"),
    [
        ("vllm", "vllm.general_plugins", "", True),
        ("sglang", "sglang.srt.plugins", "", True),
        ("vllm", "sglang.srt.plugins", "", False),
        ("trtllm", "vllm.general_plugins", "", False),
        ("vllm", "vllm.general_plugins", "unrecorded", False),
    ],
)
def test_an_engine_is_recorded_where_our_plug_in_for_it_is_installed(monkeypatch, engine, group, told, recorded):
    monkeypatch.setenv("RLSCOPE_VERL_ENGINES", told)
    installed = {group: [SimpleNamespace(name="rlscope")]}
    monkeypatch.setattr(verl_actors.metadata, "entry_points", lambda group: installed.get(group, []))
    config = {"actor_rollout_ref": {"rollout": {"name": engine}}}
    assert verl_actors.engines_are_recorded(config) == recorded


def test_the_watchers_can_be_sent_to_another_process():
    for functions in (classes for module in verl._WATCHED.values() for classes in module.values()):
        for watch in functions.values():
            assert pickle.loads(pickle.dumps(watch)).__class__ is watch.__class__
