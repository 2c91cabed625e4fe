"""The synchronous trainer's hook on a trainer with the methods and call order of TRL 1.16.0's GRPOTrainer."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rlscope_otel.integrations import trl_grpo

from tests.manual_clock import ManualClock

GENERATE_NS, REWARD_NS, LOGPROBS_NS, TRAIN_NS, LOAD_NS = 100, 20, 30, 50, 7
EOS = 2
COMPLETIONS = ([5, 6, EOS], [5, 6, 7, 8], [5, EOS], [5])


class CallbackHandler:
    def on_train_begin(self, *_arguments: object) -> None: ...
    def on_optimizer_step(self, *_arguments: object) -> None: ...
    def on_log(self, args: object, state: object, control: object, logs: dict[str, float]) -> None: ...


class VLLMGeneration:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def sync_weights(self) -> None:
        self.clock.advance(LOAD_NS)


class Model:
    training = True
    config = SimpleNamespace(_name_or_path="tiny", get_text_config=lambda: SimpleNamespace())

    def num_parameters(self) -> int:
        return 10


class GRPOTrainer:
    """Two prompts, two generations each; a generation batch feeds two steps of two samples, last sample first."""

    use_vllm = False
    num_generations = 2
    eos_token_ids = (EOS,)
    reward_weights = np.array([1.0, 2.0])
    rewards = np.array([[1.0, 0.5], [0.0, np.nan], [np.nan, np.nan], [1.0, 1.0]])

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.model = clock, Model()
        self.state = SimpleNamespace(global_step=0, max_steps=4)
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1)
        self.args = SimpleNamespace(
            per_device_train_batch_size=2, gradient_accumulation_steps=1, max_completion_length=4
        )
        self.callback_handler = CallbackHandler()
        self.vllm_generation = VLLMGeneration(clock)
        self.tool_masks: Any = None
        self._buffer: list[dict[str, Any]] = []

    def step(self) -> None:
        if self.state.global_step % 2 == 0:
            self._buffer = []
        self._compute_loss(self.model, self._prepare_inputs({}))
        self.callback_handler.on_optimizer_step(self.args, self.state, None)
        self.state.global_step += 1
        self.callback_handler.on_log(self.args, self.state, None, {"loss": 0.5})

    def _prepare_inputs(self, generation_batch: object) -> dict[str, Any]:
        if not self._buffer:
            batch = self._generate_and_score_completions([{}] * 4)
            batch = {key: list(reversed(value)) for key, value in batch.items()}
            self._buffer = [{key: value[at : at + 2] for key, value in batch.items()} for at in (0, 2)]
        return self._buffer[self.state.global_step % 2]

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        self._generate(inputs)
        self._get_per_token_logps_and_entropies(self.model)
        self._calculate_rewards()
        return {"advantages": np.array([0.1, 0.2, 0.3, 0.4])}

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        if self.use_vllm:
            self.vllm_generation.sync_weights()
        self.clock.advance(GENERATE_NS)
        return [[1, 1]] * 4, list(COMPLETIONS), self.tool_masks, [], None, {}, None, []

    def _calculate_rewards(self) -> np.ndarray:
        self.clock.advance(REWARD_NS)
        return self.rewards

    def _get_per_token_logps_and_entropies(self, model: object) -> tuple[Any, ...]:
        self.clock.advance(LOGPROBS_NS)
        return SimpleNamespace(detach=lambda: None), None, None

    def _compute_loss(self, model: object, inputs: dict[str, Any]) -> None:
        self._get_per_token_logps_and_entropies(model)
        self.clock.advance(TRAIN_NS - LOGPROBS_NS)

    def evaluate(self) -> None:
        self.model.training = False
        self._generate_and_score_completions([{}] * 4)
        self.model.training = True


@pytest.fixture
def trainer(clock):
    return GRPOTrainer(clock)


@pytest.fixture
def hook(trainer, run):
    watched = trl_grpo.instrument(trainer, run)
    yield watched
    watched.close()


def test_a_completion_without_an_end_of_its_own_ended_for_its_length(trainer, hook, run, rows):
    trainer.step()
    assert [row["finish_reason"] for row in rows("samples")] == ["stop", "length", "stop", "length"]


def test_each_use_is_a_delivery_of_the_very_sample_with_its_reward(trainer, hook, run, rows):
    trainer.step()
    trainer.step()
    found = rows("deliveries", "worker_id", "taken_ns", "queued_ns", "outcome")
    assert found == [
        {"sample_id": "0-3", "step": 1, "consumer_version": 0, "reward": 3.0},
        {"sample_id": "0-2", "step": 1, "consumer_version": 0, "reward": None},
        {"sample_id": "0-1", "step": 2, "consumer_version": 1, "reward": 0.0},
        {"sample_id": "0-0", "step": 2, "consumer_version": 1, "reward": 2.0},
    ]


def test_a_step_is_its_compute_after_generation(trainer, hook, run, rows):
    trainer.step()
    before = GENERATE_NS + LOGPROBS_NS + REWARD_NS
    (step,) = rows("train_steps")
    assert (step["start_ns"], step["end_ns"]) == (1_000_000 + before, 1_000_000 + before + TRAIN_NS)
    assert (step["version_in"], step["version_out"], step["samples"], step["tokens"]) == (0, 1, 2, 7)
    assert (step["loss"], step["reward_mean"]) == (0.5, 3.0)


def test_vllm_takes_the_newest_version_when_it_loads(clock, run, rows):
    trainer = GRPOTrainer(clock)
    trainer.use_vllm = True
    trainer.state.global_step = 6
    hook = trl_grpo.instrument(trainer, run)
    trainer.step()
    hook.close()
    applied = [row for row in rows("weight_updates") if row["phase"] == "apply"]
    assert [(row["version"], row["end_ns"] - row["start_ns"], row["paused"]) for row in applied] == [(6, LOAD_NS, True)]


def test_what_tools_returned_is_no_output(trainer, hook, run, rows):
    trainer.tool_masks = [[1, 1, 1], [1, 0, 0, 1], [1, 1], [1]]
    trainer.step()
    assert [row["output_tokens"] for row in rows("samples")] == [3, 2, 2, 1]


def test_an_evaluation_is_one_activity_and_no_samples(trainer, hook, run, rows):
    trainer.evaluate()
    assert rows("samples") == []
    assert "eval" in {row["activity"] for row in rows("activities")}


def test_a_resumed_run_gives_its_samples_names_of_their_own(trainer, hook, run, rows):
    trainer.state.global_step = 8
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, None)
    trainer.step()
    assert rows("samples")[0]["sample_id"] == "8+0-0"
