"""TRL's rollout worker and weight transfer around transformers' continuous batching, in the trainer's own process.

Two threads beside the trainer's: the engine's generation loop, and this worker, which keeps it full, scores finished
groups and queues them. The engine's weights are written in flight, under `manager.pause()`.
"""

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from rlscope_otel import Run
from rlscope_otel.integrations import transformers_cb
from rlscope_otel.integrations.request_ids import RequestName, request_id_of
from rlscope_otel.integrations.trl_rollouts import sample_id_of, tag
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from examples.trl_async.counts import Counts, Scored
from examples.trl_async.options import Options
from examples.trl_async.tiny_model import EOS, PAD, byte_share_ratio

POLL_S = 0.05
PAGE_TOKENS = 16
PAGES = 256


@dataclass(slots=True)
class OpenGroup:
    """A prompt whose responses are not all there yet."""

    number: int
    prompt_ids: list[int]
    prompt: list[dict[str, str]]
    admitted_version: int
    results: list[tuple[int, Any]] = field(default_factory=list)


class TransformersEngine:
    """The engine, TRL's `RolloutWorkerProtocol` and its `WeightTransferProtocol` at once."""

    def __init__(self, options: Options, model_dir: Path, prompts: list[Any], counts: Counts, run: Run) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue(options.queue_capacity_samples)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._options, self._counts, self._prompts = options, counts, itertools.cycle(prompts)
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self._version = 0
        self._stopping = threading.Event()
        self._asked: dict[str, tuple[OpenGroup, int]] = {}
        self._pause = ExitStack()
        with run.activity("startup"):
            self.model = AutoModelForCausalLM.from_pretrained(
                model_dir, attn_implementation="sdpa", dtype=torch.float32
            ).eval()
            self.manager = self._make_manager()
        self.engine = transformers_cb.instrument(self.manager, run)
        self.manager.start()

    def _make_manager(self) -> Any:  # noqa: ANN401
        generation = GenerationConfig(
            max_new_tokens=self._options.response_cap,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
        batching = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=PAGES,
            max_batch_tokens=512,
            max_requests_per_batch=self._options.in_flight,
            return_logprobs=True,
            use_cuda_graph=False,
        )
        return self.model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)

    # TRL's RolloutWorkerProtocol

    def start(self) -> None:
        """Generate from now on."""
        threading.Thread(target=self._roll_out, name="rollouts", daemon=True).start()

    def stop(self) -> None:
        """Generate no more; what is running is cut off."""
        self._stopping.set()
        if self.manager.is_running():
            self.manager.stop(hard_stop=True)

    def update_model_version(self, model_version: int) -> None:
        """What new groups are admitted at."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """TRL asks while it waits."""
        error = self.manager.background_thread_status.fatal_error
        if error is not None:
            raise RuntimeError("the engine's generation loop has failed") from error

    # TRL's WeightTransferProtocol

    def init_weight_transfer(self) -> None:
        """Nothing to connect to."""

    def pause(self) -> None:
        """Hold the generation loop between two passes."""
        self._pause.enter_context(self.manager.pause())

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Write the weights of the next version into the engine's model."""
        own = self.model.state_dict()
        with torch.no_grad(), self.engine.apply(self._counts.weight_syncs + 1):
            for name, weight in iterator:
                own[name].copy_(weight)
        self._counts.weight_syncs += 1

    def resume(self) -> None:
        """Let it go on."""
        self._pause.close()

    def destroy(self) -> None:
        """Nothing is held."""

    # The worker's own thread

    def _roll_out(self) -> None:
        for number, row in enumerate(self._prompts):
            prompt_ids = self._tokenizer.apply_chat_template(
                row["prompt"], add_generation_prompt=True, return_dict=False
            )
            self._admit(OpenGroup(number, prompt_ids, row["prompt"], self._version))
            while len(self._asked) > self._options.in_flight - self._options.group:
                if self._stopping.is_set():
                    return
                result = self.manager.get_result(timeout=POLL_S)
                if result is not None:
                    self._accept(result)

    def _admit(self, group: OpenGroup) -> None:
        for index in range(self._options.group):
            request_id = request_id_of(RequestName(sample_id_of(group.number, index), str(group.number)))
            self._asked[request_id] = (group, index)
            self.manager.add_request(group.prompt_ids, request_id=request_id)

    def _accept(self, result: Any) -> None:  # noqa: ANN401
        group, index = self._asked.pop(result.request_id)
        group.results.append((index, result))
        tokens = len(result.generated_tokens)
        self._counts.tokens_generated += tokens
        self._counts.scored[sample_id_of(group.number, index)] = Scored(group.admitted_version, tokens)
        if len(group.results) == self._options.group:
            for row in self._score(group):
                self._put(row)

    def _score(self, group: OpenGroup) -> list[RolloutSample]:
        rewards = [byte_share_ratio(result.generated_tokens) for _, result in group.results]
        mean, spread = fmean(rewards), pstdev(rewards)
        rows: list[RolloutSample] = []
        for (index, result), reward in zip(group.results, rewards, strict=True):
            metrics = {"reward": reward, "reward_std": spread}
            tag(metrics, index, self.engine.versions_of(result.request_id) or ())
            rows.append(_row(group, result, (reward - mean) / (spread + 1e-8), metrics))
        return rows

    def _put(self, row: RolloutSample) -> None:
        while not self._stopping.is_set():
            try:
                row.enqueued_at = time.time()
                return self.rollout_buffer.put(row, timeout=POLL_S)
            except queue.Full:
                continue


def _row(group: OpenGroup, result: Any, advantage: float, metrics: dict[str, float]) -> RolloutSample:  # noqa: ANN401
    prompt_tokens, response = len(group.prompt_ids), result.generated_tokens
    return RolloutSample(
        prompt=group.prompt,
        completion=[{"role": "assistant", "content": ""}],
        input_ids=np.array([*group.prompt_ids, *response]),
        completion_mask=np.array([0] * prompt_tokens + [1] * len(response)),
        old_log_probs=np.array([0.0] * prompt_tokens + list(result.logprobs), dtype=np.float32),
        advantage=advantage,
        model_version=group.admitted_version,
        group_id=group.number,
        metrics=metrics,
    )
