"""TRL's synchronous GRPOTrainer: one worker that alternately generates, scores and trains.

    rlscope_otel.integrations.trl_grpo.instrument(trainer)
    trainer.train()

Recorded, with the role `colocated`: when the worker generated, computed rewards and log-probabilities, trained,
evaluated and saved; a sample for each completion; a delivery for each of its `num_iterations` uses; train steps with
their tokens; the importance ratio where TRL computes one.

The policy version is the number of optimizer steps, since every step changes the weights that generate: each counts as
a publication that takes no time. With vLLM, which gets new weights only before it generates, loading them is an `apply`
of that version. All tokens of a generation have the same version, exactly (source `engine`). Their staleness is the
number of optimizer steps since; it grows when one generation feeds several steps
(`steps_per_generation` above `gradient_accumulation_steps`, or `num_iterations` above 1).

Not recorded: when each sample of a batch ended (all end with the batch), engine steps, tokens returned by tools, and
samples of evaluations.

Run with TRL 1.16.0, transformers 5.23.0, one process on CPU, `generate()`. Not run: vLLM, colocated or as a server;
`use_transformers_continuous_batching`; tools and environments; several processes, DeepSpeed, FSDP, Liger.
"""

from dataclasses import dataclass
from typing import Any

from rlscope_otel.integrations.seams import Call
from rlscope_otel.integrations.trl_trainer import TrainerHook, finite, hook_of
from rlscope_otel.phases import Phase
from rlscope_otel.recorder import Run

ROWS_KEY = "rlscope_rows"
"""Travels with the tensors of a generation, so that its samples are known again after TRL has shuffled them."""


@dataclass(slots=True)
class _Row:
    """One completion of the present generation."""

    sample_id: str
    tokens: int
    reward: float | None = None


class GrpoHook(TrainerHook):
    """One watched GRPOTrainer."""

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run)
        self._rows: list[_Row] = []
        self._generations = 0
        self._generated_at = 0
        self._begun_at_step = 0
        self._is_scoring = False
        self._rewards: Any = None
        self._loss_inputs: Any = None
        callbacks = trainer.callback_handler
        self.watch(callbacks, "on_train_begin", self._begin)
        self.watch(callbacks, "on_optimizer_step", self._publish)
        self._watch_phases()

    def _watch_phases(self) -> None:
        trainer, watch = self.trainer, self.watch
        watch(trainer, "_generate_and_score_completions", self._scoring, self._scored)
        self.phase(trainer, "_generate", lambda call: self.run.activity("generate"), self._generated)
        self.phase(trainer, "_calculate_rewards", lambda call: self.run.activity("reward"), self._rewarded)
        self.phase(trainer, "_get_per_token_logps_and_entropies", self._logprobs_phase, self._logprobs_end)
        watch(trainer, "_prepare_inputs", after=self._prepared)
        watch(trainer, "_compute_loss", self._losing, self._lost)
        if getattr(trainer, "use_vllm", False):
            self.phase(
                trainer.vllm_generation,
                "sync_weights",
                lambda call: self.run.apply_weights(self._version, paused=True, kv="recomputed"),
            )

    @property
    def _version(self) -> int:
        """Optimizer steps behind the present weights."""
        return self.trainer.state.global_step

    def _begin(self, call: Call) -> None:
        self._begun_at_step = self._version
        own = {"staleness_policy": "none"}
        self.run.add_config(self.config(self.trainer.num_generations, self.trainer.model, own))

    def _publish(self, call: Call) -> None:
        now_ns = self.run.now_ns()
        self.run.publish_weights(self.steps.number).between(now_ns, now_ns)

    def _scoring(self, call: Call) -> None:
        self._is_scoring = True

    def _generated(self, call: Call) -> None:
        if call.error is not None or not self.trainer.model.training:
            return
        prompts, completions, tool_masks = call.result[:3]
        end_ns = self.run.now_ns()
        first = self.trainer.accelerator.process_index * len(prompts)
        generation = f"{self._begun_at_step}+{self._generations}" if self._begun_at_step else str(self._generations)
        self._generations += 1
        self._generated_at = self._version
        self._rows = []
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            tokens = len(completion) if tool_masks is None else sum(tool_masks[index])
            group_id = f"{generation}-{(first + index) // self.trainer.num_generations}"
            self._rows.append(_Row(f"{generation}-{first + index}", len(prompt) + tokens))
            sample = self.run.sample(
                self._rows[-1].sample_id, group_id, prompt_tokens=len(prompt), submitted_ns=call.started_ns
            )
            sample.started(call.started_ns)
            sample.tokens(tokens, self._version)
            sample.finish(self._reason_of(completion), end_ns)

    def _reason_of(self, completion: list[int]) -> str:
        return "stop" if completion and completion[-1] in self.trainer.eos_token_ids else "length"

    def _rewarded(self, call: Call) -> None:
        self._rewards = call.result

    def _scored(self, call: Call) -> None:
        """Rewards are known: each row keeps its own, and its number goes with its tensors."""
        self._is_scoring = False
        if call.error is not None or not self.trainer.model.training:
            return
        count = len(self._rows)
        first = self.trainer.accelerator.process_index * count
        of_functions = self._rewards[first : first + count].tolist()
        weights = self.trainer.reward_weights.tolist()
        for row, values in zip(self._rows, of_functions, strict=True):
            row.reward = _weighted(values, weights)
        call.result[ROWS_KEY] = list(range(count))

    def _prepared(self, call: Call) -> None:
        """A micro-batch is ready: compute begins, and its samples are used."""
        if call.error is not None or not self.trainer.model.training:
            return
        rows = [self._rows[number] for number in call.result.get(ROWS_KEY, ())]
        step = self.steps.number
        self.steps.begin(self._version, step)
        rewards = [row.reward for row in rows if row.reward is not None]
        self.steps.add(len(rows), sum(row.tokens for row in rows), rewards)
        for row in rows:
            self.run.delivery(row.sample_id, "trained", step=step, consumer_version=self._version, reward=row.reward)

    def _logprobs_phase(self, call: Call) -> Phase | None:
        return self.run.activity("logprobs") if self._is_scoring else None

    def _logprobs_end(self, call: Call) -> None:
        if self._loss_inputs is not None and call.error is None:
            self._note_importance(call.result[0].detach(), self._loss_inputs)

    def _losing(self, call: Call) -> None:
        if self.trainer.model.training:
            self._loss_inputs = call.argument(2, "inputs")

    def _lost(self, call: Call) -> None:
        self._loss_inputs = None

    def _note_importance(self, logprobs: Any, inputs: Any) -> None:
        """Add w = exp(logprob now - logprob when sampled) of the micro-batch; TRL omits the latter where w is 1."""
        sampled = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
        if sampled is None:
            return
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        ratios = (logprobs - sampled).exp()[mask.bool() & ~sampled.isnan()].double()
        tokens, total, squares = ratios.numel(), float(ratios.sum()), float((ratios**2).sum())
        age = self._version - self._generated_at
        self.steps.add_moment((age, tokens, total, squares), is_fresh=age == 0)


def instrument(trainer: Any, run: Run | None = None) -> GrpoHook | None:
    """Record a GRPOTrainer. Returns None without a run.

    The run is `run`, else this process's run, else one started from the environment, as `colocated`.
    """
    return hook_of(trainer, "colocated", run, GrpoHook)


def _weighted(values: list[float], weights: list[float]) -> float | None:
    """The sum of the rewards that there are, each with its function's weight; None without any."""
    known = [value * weight for value, weight in zip(values, weights, strict=True) if finite(value) is not None]
    return sum(known) if known else None
