"""The asynchronous trainer's hook on the parts of TRL 1.16.0 and transformers 5.23.0 that it meets, stepped by hand.

`take_batch` is what the data loader does, `step` what the training loop does with it.
"""

import functools
import io
import json
import queue
import urllib.request
from collections import defaultdict, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rlscope_otel
from rlscope_otel.integrations import trl_async
from rlscope_otel.integrations.trl_rollouts import Recording, limits_of, start_loop, tag

from tests.manual_clock import ManualClock

STEP_NS = 100
PUBLISH_NS = 20


@dataclass
class RolloutSample:
    group_id: int
    model_version: int
    input_ids: np.ndarray = field(default_factory=lambda: np.array([1, 2, 3, 4]))
    completion_mask: np.ndarray = field(default_factory=lambda: np.array([0, 1, 1, 1]))
    metrics: dict[str, float] = field(default_factory=lambda: {"reward": 1.0})
    enqueued_at: float | None = None


class TreeRow:
    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.samples = samples
        self.tokens = [token for sample in samples for token in sample["input_ids"]]


class RolloutQueueDataset:
    def __init__(self, trainer: "AsyncGRPOTrainer") -> None:
        self.queue, self.trainer = trainer.rollout_queue, trainer

    def __iter__(self):
        while True:
            sample = self.queue.get(timeout=0)
            if self.trainer.model_version - sample.model_version > self.trainer.args.max_staleness:
                continue
            yield {"input_ids": sample.input_ids, "group_id": sample.group_id, "metrics": sample.metrics}


class DataCollatorForRollout:
    def __init__(self, metrics: dict[str, list[float]]) -> None:
        self.metrics = metrics

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        (rows,) = examples
        assert not [key for row in rows for item in row.samples for key in item["metrics"] if "rlscope" in key]
        return {"rows": rows}


class CallbackHandler:
    def on_train_begin(self, args: object, state: object, control: object) -> None:
        for callback in (self.trainer._sync_weight,):
            callback()

    def on_optimizer_step(self, args: object, state: object, control: object) -> None: ...
    def on_log(self, args: object, state: object, control: object, logs: dict[str, float]) -> None: ...
    def on_train_end(self, args: object, state: object, control: object) -> None: ...


class Transfer:
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def send_weights(self, iterator: object) -> None:
        self.clock.advance(PUBLISH_NS)


class Model:
    config = SimpleNamespace(
        _name_or_path="/models/tiny",
        get_text_config=lambda: SimpleNamespace(
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64
        ),
    )

    def num_parameters(self) -> int:
        return 1000

    def register_forward_hook(self, hook: object) -> SimpleNamespace:
        return SimpleNamespace(remove=lambda: None)


class AsyncGRPOTrainer:
    def __init__(self, clock: ManualClock, worker: object | None = None) -> None:
        self.clock = clock
        self.args = SimpleNamespace(
            max_staleness=1,
            weight_sync_steps=1,
            token_budget=0,
            queue_maxsize=64,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=1,
            num_generations=2,
            max_completion_length=16,
        )
        self.accelerator = SimpleNamespace(
            is_main_process=True, process_index=0, num_processes=1, unwrap_model=lambda model: model
        )
        self.state = SimpleNamespace(global_step=0, max_steps=3)
        self.model, self.model_version = Model(), 0
        self.callback_handler = CallbackHandler()
        self.callback_handler.trainer = self
        self.weight_transfer = Transfer()
        self.weight_transfer.clock = clock
        self.rollout_worker = worker or SimpleNamespace()
        self.rollout_queue: Any = queue.Queue(maxsize=5)
        self._metrics = {"train": defaultdict(list)}
        self._loader: Any = None
        self.fetched: deque[dict[str, Any]] = deque()
        # TRL's own callback holds the bound method from here on.
        self.sync_callback = self._sync_weight

    def train_begins(self) -> None:
        self.callback_handler.on_train_begin(self.args, self.state, None)
        self._loader = iter(RolloutQueueDataset(self))

    def train_ends(self) -> None:
        self.callback_handler.on_train_end(self.args, self.state, None)

    def take_batch(self, count: int = 2) -> None:
        items = [next(self._loader) for _ in range(count)]
        longest = self.args.token_budget or 100
        rows = [TreeRow([item for item in items if len(item["input_ids"]) <= longest])]
        self.fetched.append(DataCollatorForRollout(self._metrics["train"]).torch_call([rows]))

    def step(self, logs: dict[str, float] | None = None) -> None:
        """One optimizer step on the oldest batch that was taken."""
        self.training_step(self.model, self.fetched.popleft(), None)
        self.callback_handler.on_optimizer_step(self.args, self.state, None)
        self.state.global_step += 1
        self.sync_callback()
        self.callback_handler.on_log(self.args, self.state, None, logs or {"loss": 0.25, "grad_norm": 2.0})

    def training_step(self, model: object, inputs: object, num_items_in_batch: object) -> None:
        self.compute_loss(model, inputs)

    def compute_loss(self, model: object, inputs: object) -> None:
        self.clock.advance(STEP_NS)

    def get_batch_samples(self, epoch_iterator: object) -> None:
        self.clock.advance(STEP_NS)

    def evaluate(self) -> None: ...
    def _sync_weight_lora(self, t0: float) -> None: ...

    def _save_checkpoint(self, model: object, trial: object) -> None:
        self.clock.advance(STEP_NS)

    def _sync_weight(self) -> None:
        self._sync_weight_merged(0.0)

    def _sync_weight_merged(self, t0: float) -> None:
        self.weight_transfer.pause()
        self.weight_transfer.send_weights(iter(()))
        self.weight_transfer.resume()
        self.model_version += 1


@pytest.fixture
def trainer(clock):
    return AsyncGRPOTrainer(clock)


@pytest.fixture
def hook(trainer, run):
    watched = trl_async.instrument(trainer, run)
    yield watched
    watched.close()


def put(trainer, *samples: RolloutSample) -> None:
    for sample in samples:
        trainer.rollout_queue.put(sample)


def tagged(group: int, number: int, version: int) -> RolloutSample:
    sample = RolloutSample(group, version)
    tag(sample.metrics, number, [(version, 0, 3)])
    return sample


def train(trainer, *samples: RolloutSample, logs: dict[str, float] | None = None) -> None:
    """Training begins, and a batch of two samples is taken and trained on."""
    trainer.train_begins()
    put(trainer, *samples or (tagged(0, 0, 1), tagged(0, 1, 1)))
    trainer.take_batch()
    trainer.step(logs)


def test_what_trl_drops_filters_and_never_trains_on_is_told_apart(trainer, hook, run, rows):
    trainer.args.token_budget = 4
    trainer.train_begins()
    trainer.model_version = 3
    long = tagged(2, 0, 3)
    long.input_ids = np.zeros(5)
    exact = tagged(2, 1, 3)
    put(trainer, tagged(0, 0, 1), tagged(0, 1, 2), long, exact, tagged(3, 0, 3))
    trainer.take_batch(3)
    trainer.take_batch(1)
    trainer.step()
    trainer.train_ends()
    assert {row["sample_id"]: row["outcome"] for row in rows("deliveries")} == {
        "0-0": "dropped_stale",
        "0-1": "trained",
        "2-0": "filtered",
        "2-1": "trained",
        "3-0": "abandoned",
    }


def test_a_conversation_in_several_training_rows_is_delivered_once(trainer, hook, run, rows):
    train(trainer, tagged(0, 0, 1), tagged(0, 0, 1))
    assert [row["outcome"] for row in rows("deliveries")] == ["trained"]


def test_rows_that_nobody_names_are_samples_of_their_admission(trainer, hook, run, rows):
    train(trainer, RolloutSample(7, 1), RolloutSample(7, 1))
    first, second = rows("samples")
    assert (first["sample_id"], second["sample_id"], first["group_id"]) == ("7-0", "7-1", "7")
    assert (first["prompt_tokens"], first["output_tokens"], first["version_source"]) == (1, 3, "admission")
    assert first["versions"] == [{"version": 1, "start": 0, "end": 3}]


def test_a_step_has_the_values_of_the_log_that_speaks_of_it_alone_also_the_first_of_a_resumed_run(
    trainer, hook, columns
):
    trainer.state.global_step = 40
    train(trainer, logs={"loss": 0.25, "clip_ratio/region_mean": 0.1, "completions/clipped_ratio": 0.5})
    found = columns("train_steps", "step", "loss", "grad_norm", "clip_ratio", "truncated_ratio", "entropy")
    assert found == [(41, 0.25, None, 0.1, 0.5, None)]


def test_a_log_over_several_steps_says_nothing_of_one(trainer, hook, rows, monkeypatch):
    trainer.train_begins()
    put(trainer, *(tagged(0, number, 1) for number in range(4)))
    trainer.take_batch()
    trainer.take_batch()
    with monkeypatch.context() as quiet:
        quiet.setattr(trainer.callback_handler, "on_log", lambda *_: None)
        trainer.step()
    trainer.step()
    trainer.train_ends()
    assert [row["loss"] for row in rows("train_steps")] == [None, None]


def test_an_empty_queue_is_a_wait_for_samples_and_a_filled_one_is_not(trainer, hook, run, columns, clock):
    trainer.train_begins()
    begin_ns = run.now_ns()

    queue_get = trainer.rollout_queue.host_queue.get

    def slow_get(**arguments: object) -> RolloutSample:
        if trainer.rollout_queue.qsize() == 0:
            clock.advance(40)
            put(trainer, tagged(0, 0, 1), tagged(0, 1, 1))
        return queue_get(**arguments)

    trainer.rollout_queue.host_queue.get = slow_get
    trainer.take_batch()
    found = columns("activities", "activity", "reason", "start_ns", "end_ns")
    assert [row for row in found if row[0] == "wait"] == [("wait", "samples", begin_ns, begin_ns + 40)]
    assert columns("queue_depths", "depth", "capacity") == [(1, 5), (0, 5)]


def test_the_start_of_training_and_checkpoints_are_told(trainer, hook, run, rows):
    trainer.train_begins()
    trainer._save_checkpoint(None, None)
    spans = {row["activity"]: row["end_ns"] - row["start_ns"] for row in rows("activities")}
    assert spans == {"startup": PUBLISH_NS, "checkpoint": STEP_NS}


SETTINGS = {
    "framework": "trl",
    "samples_per_step": 2,
    "group_size": 2,
    "max_staleness": 1,
    "staleness_policy": "drop",
    "queue_capacity_samples": 5,
    "queue_policy": "wait",
    "queue_order": "fifo",
    "dispatch": "least_loaded",
    "batches_ahead": 1.0,
    "max_output_tokens": 16,
    "gpus_per_trainer_replica": 1,
    "total_steps": 3,
    "model": {"name": "tiny", "parameters": 1000, "layers": 2, "kv_heads": 2, "head_dim": 16},
}


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ({}, {}),
        ({"gradient_accumulation_steps": 4}, {"samples_per_step": 8, "batches_ahead": 0.25}),
        ({"token_budget": 4096}, {"samples_per_step": None}),
    ],
    ids=["of whole batches", "of a step of four pieces, one of them ahead", "of batches without a fixed size"],
)
def test_settings_are_in_run_json_after_a_flush_and_the_trainer_s_thread_writes_no_file(
    trainer, hook, run, tmp_path, arguments, changed
):
    def config() -> dict[str, object]:
        return json.loads((tmp_path / "run.json").read_text())["config"]

    vars(trainer.args).update(arguments)
    trainer.train_begins()
    assert config() == {}
    run.flush()
    assert config() == {name: value for name, value in (SETTINGS | changed).items() if value is not None}


class Loop:
    def __init__(
        self, *, max_inflight_tasks: int = 128, queue_maxsize: int = 0, score_queue_maxsize: int = 16
    ) -> None: ...


@pytest.mark.parametrize(
    ("given", "most_queued", "running", "lying"),
    [
        ({"max_inflight_tasks": 8}, 5, 8, 5 + 17 * 2),
        ({"score_queue_maxsize": 0}, 5, 128, None),
        ({"score_queue_maxsize": 1}, None, 128, None),
    ],
)
def test_tasks_bound_what_runs_and_finished_groups_lie_before_the_queue_and_in_it(given, most_queued, running, lying):
    worker = SimpleNamespace(_loop_cls=Loop, _loop_kwargs=given)
    assert limits_of(worker, most_queued, 2) == {"max_running_samples": running, "queue_capacity_samples": lying}


def test_of_a_rollout_worker_that_is_not_trl_s_only_the_queue_is_known():
    for worker in (None, SimpleNamespace(), SimpleNamespace(_loop_cls=Loop), SimpleNamespace(_loop_kwargs={})):
        assert limits_of(worker, 5, 2) == {"queue_capacity_samples": 5}


def test_the_rollout_worker_s_process_begins_under_watch(clock, run):
    class Loop:
        pass

    worker = SimpleNamespace(_loop_cls=Loop)
    trainer = AsyncGRPOTrainer(clock, worker)
    hook = trl_async.instrument(trainer, run)
    trainer.state.global_step = 40  # Resumed.
    trainer.train_begins()
    begun = worker._loop_cls
    assert isinstance(begun, functools.partial)
    assert (begun.func, begun.args) == (start_loop, (Loop, Recording(str(run.run_dir), "w0-rollouts", "40+")))
    hook.close()


@pytest.mark.parametrize(("error", "counts"), [(None, {}), (OSError("refused"), {"weight version": 1})])
def test_trl_s_own_transfer_tells_vllm_the_version_it_has_sent_and_no_answer_costs_only_detail(
    run, trainer, monkeypatch, error, counts
):
    asked: list[tuple[str, str, object]] = []

    def answer(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        asked.append((request.get_method(), request.full_url, json.loads(request.data)))
        if error is not None:
            raise error
        return io.BytesIO()

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    monkeypatch.setattr(Transfer, "__module__", "trl.experimental.async_grpo.weight_transfer")
    trainer.weight_transfer.vllm = SimpleNamespace(server_url="http://vllm:8000")
    hook = trl_async.instrument(trainer, run)
    trainer.train_begins()
    hook.close()
    assert asked == [("POST", "http://vllm:8000/update_weight_version", {"new_version": "1"})]
    assert (trainer.model_version, run.faults.counts) == (1, counts)


def test_a_rank_without_the_queue_counts_syncs_along_and_waits_for_its_batches(clock, run, rows):
    trainer = AsyncGRPOTrainer(clock)
    trainer.accelerator.is_main_process = False
    trainer.rollout_queue = trainer.rollout_worker = trainer.weight_transfer = None
    trainer._sync_weight = lambda: AsyncGRPOTrainer._sync_weight(trainer)
    hook = trl_async.instrument(trainer, run)
    hook._synced(trl_async.Call((trainer,), {}, 0))
    trainer.get_batch_samples(None)
    assert hook.version == 1
    assert [(row["activity"], row["reason"]) for row in rows("activities")] == [("wait", "samples")]
    hook.close()


def test_another_trainer_of_the_process_is_not_recorded(trainer, hook, run, rows, clock):
    AsyncGRPOTrainer(clock).train_begins()
    assert rows("weight_updates") == rows("activities") == []


def test_a_trainer_is_watched_once_and_given_back_at_the_end(trainer, run):
    host, its_queue = AsyncGRPOTrainer.training_step, trainer.rollout_queue
    hook = trl_async.instrument(trainer, run)
    assert trainer.rollout_queue is not its_queue
    assert trl_async.instrument(trainer, run) is hook
    assert AsyncGRPOTrainer.training_step is not host
    hook.close()
    assert AsyncGRPOTrainer.training_step is host
    assert trainer.rollout_queue is its_queue


def test_without_a_run_folder_nothing_is_watched(trainer):
    host, its_queue = AsyncGRPOTrainer.training_step, trainer.rollout_queue
    assert trl_async.instrument(trainer, rlscope_otel.start_run(None)) is None
    assert AsyncGRPOTrainer.training_step is host
    assert trainer.rollout_queue is its_queue
