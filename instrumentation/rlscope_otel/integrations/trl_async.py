"""TRL's AsyncGRPOTrainer (`trl.experimental.async_grpo`): the trainer process and, through it, the rollout worker.

    rlscope_otel.integrations.trl_async.instrument(trainer)
    trainer.train()

Recorded here: start-up, until the rollout worker runs; train steps, from the first micro-batch to the end of
`optimizer.step()`; the trainer's waits for samples; a publication for each weight sync, with its pause (`drain`), its
transfer and its `resume`; the queue's depth; the outcome of every sample that the trainer took; importance ratios by
token staleness; settings in run.json. For the rollout worker's process see `trl_rollouts.py`.

Versions are TRL's own `model_version`: 0 until the sync before the first step, which is a publication too, then one
more at every sync. A sample's consumer version is the one at the start of its gradient step. TRL logs
`sample/staleness_mean`: the version when the sample was taken from the queue, minus the one at which its group was
admitted. TRL prefetches one batch, so by the time the step runs, further versions may have been published and a sample
can be beyond `max_staleness`, which TRL checks when it takes the sample. Both values can be computed from the trace:
the version when it was taken is that of the last publication that ended before `taken_ns`.

TRL's `max_inflight_tasks` bounds the samples that generate at once over all engines (`max_running_samples`), not the
finished ones: `queue_capacity_samples` is the number of finished samples at which TRL starts no more, i.e. the rows of
the queue and the groups that wait for their scores. For a custom rollout worker only the queue is known.

Token staleness in `importance` uses the best version that this process has: that of each token from the rollout worker
(see `trl_rollouts.py`), else the one at admission.

At each sync, while vLLM is paused, this hook sends it the version of its weights, which vLLM then records with each
token: one more HTTP request to the server, with a timeout of 2 s, whose failure is never an error. This covers TRL's
own transfer; a custom one has to pass `trainer.model_version + 1` to its engine itself.

Run with TRL 1.16.0 and transformers 5.23.0 on CPU, with transformers' continuous batching injected and with vLLM 0.32.0
and the spawned worker (weights through a file). Not run: NCCL, adapters (LoRA), several trainer processes, FSDP.
"""

import functools
import json
import sys
import urllib.request
from typing import Any

from rlscope_otel.integrations.seams import Call, Watch, during
from rlscope_otel.integrations.trl_rollouts import Batch, Recording, Taken, Takings, WatchedQueue, limits_of, start_loop
from rlscope_otel.integrations.trl_trainer import Steps, TrainerHook, hook_of
from rlscope_otel.phases import Phase
from rlscope_otel.recorder import Run

# The importance ratio of each token between the trainer's policy and the one that sampled it, by token staleness.
#
# w = exp(log-probability now - log-probability when sampled), the ratio whose clipped product with the advantage GRPO
# maximizes (Schulman et al. 2017, section 3, https://arxiv.org/abs/1707.06347). TRL logs its mean over the batch;
# here its moments are recorded by token staleness. The log-probabilities are those that the loss is computed from,
# taken from the model's output.
#
# A token is fresh if the version that trains on it sampled its whole sample, and the trainer's weights are still
# those that it published: with `weight_sync_steps` above 1, only in the first step after a sync.


class Importance:
    """The ratios of one trainer's micro-batches."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._version = 0
        self._is_published = False
        self._batch: Batch | None = None
        self._is_losing = False
        self._logprobs: Any = None
        self._handle: Any = None

    def listen(self, model: Any) -> None:
        """See what the model puts out."""
        self._handle = model.register_forward_hook(self._seen)

    def close(self) -> None:
        """See no more."""
        if self._handle is not None:
            self._handle.remove()

    def begin(self, version: int, batch: Batch | None, is_published: bool) -> None:
        """A micro-batch is about to be trained on; `is_published`: by the very weights that were published last."""
        self._version, self._batch, self._is_published = version, batch, is_published

    def losing(self, call: Call) -> None:
        """The loss of a micro-batch begins."""
        self._is_losing = True

    def lost(self, call: Call) -> None:
        """The loss is known. TRL has just read numbers of it from the device, so a few more cost little."""
        self._is_losing = False
        logprobs, self._logprobs = self._logprobs, None
        if call.error is not None or logprobs is None or self._batch is None:
            return
        inputs = call.argument(2, "inputs")
        selected = inputs["token_index"] >= 0
        now = logprobs.detach().flatten()[inputs["token_index"][selected]]
        ratios = (now - inputs["old_log_probs"][selected]).exp().double()
        self._add(ratios)

    def _seen(self, _module: Any, _inputs: Any, output: Any) -> None:
        if self._is_losing:
            self._logprobs = getattr(output, "log_probs", None)

    def _add(self, ratios: Any) -> None:
        """Sum them up by age and freshness. They are in the order of the rows and, in each, of its tokens."""
        assert self._batch is not None
        runs = [run for taken in self._batch.own for run in self._runs(taken)]
        if sum(tokens for _, tokens in runs) != len(ratios):
            return
        kinds = sorted({kind for kind, _ in runs})
        kind_of_run = ratios.new_tensor([kinds.index(kind) for kind, _ in runs]).long()
        kind = kind_of_run.repeat_interleave(ratios.new_tensor([tokens for _, tokens in runs]).long())
        sums = ratios.new_zeros(2, len(kinds))
        sums[0].index_add_(0, kind, ratios)
        sums[1].index_add_(0, kind, ratios**2)
        for (age, is_fresh), sum_w, sum_w2 in zip(kinds, *sums.tolist(), strict=True):
            tokens = sum(tokens for kind, tokens in runs if kind == (age, is_fresh))
            self._steps.add_moment((age, tokens, sum_w, sum_w2), is_fresh)

    def _runs(self, taken: Taken) -> list[tuple[tuple[int, bool], int]]:
        """Return the age and freshness of the tokens of a row that one version sampled, and how many they are."""
        is_fresh = self._is_published and set(taken.tokens_by_version) == {self._version}
        return [((self._version - sampled, is_fresh), tokens) for sampled, tokens in taken.tokens_by_version.items()]


_LABEL_TIMEOUT_S = 2.0


class AsyncGrpoHook(TrainerHook):
    """One watched AsyncGRPOTrainer."""

    def __init__(self, trainer: Any, run: Run) -> None:
        super().__init__(trainer, run)
        self._importance = Importance(self.steps)
        self._is_main = trainer.accelerator.is_main_process
        self._bytes_sent: int | None = None
        self._syncs = 0
        self._synced_at_step = 0
        self._takings = Takings(run, _capacity(trainer))
        self._queue: WatchedQueue | None = None
        callbacks = trainer.callback_handler
        self.phase(callbacks, "on_train_begin", self._begin)
        self.watch(callbacks, "on_train_end", self._end)
        self.watch(trainer, "training_step", self._train)
        self.watch(trainer, "compute_loss", self._importance.losing, self._lost)
        # Not `_sync_weight`, which TRL's own callback has held a reference to since before this.
        for sync in ("_sync_weight_merged", "_sync_weight_lora"):
            self.phase(trainer, sync, lambda call: self.run.publish_weights(self.version + 1), self._synced)
        self._importance.listen(trainer.model)
        if self._is_main:
            self._watch_rollouts()
        else:
            self.phase(trainer, "get_batch_samples", lambda call: run.wait("samples"))

    def close(self) -> None:
        """Restore the trainer's functions and its queue."""
        super().close()
        self._importance.close()
        if self._queue is not None:
            self._queue.is_watched = False
            self.trainer.rollout_queue = self._queue.host_queue

    @property
    def version(self) -> int:
        """The last version published: TRL counts it on its main process, the others count along."""
        return self.trainer.model_version if self._is_main else self._syncs

    def _watch_rollouts(self) -> None:
        trainer = self.trainer
        self._queue = trainer.rollout_queue = WatchedQueue(trainer.rollout_queue, self.run, self._takings)
        self.seams.watch(_part_of(trainer, "RolloutQueueDataset"), "__iter__", Watch(each=self._kept))
        packing = during(self._packing, then=self._packed)
        self.seams.watch(_part_of(trainer, "DataCollatorForRollout"), "torch_call", packing)
        if trainer.weight_transfer is not None:
            self.phase(trainer.weight_transfer, "send_weights", self._send, self._sent)
            for call, part in (("pause", "drain"), ("resume", "resume")):
                self.phase(trainer.weight_transfer, call, functools.partial(self._part, part))

    def _begin(self, call: Call) -> Phase:
        """TRL waits for its server, sends it the weights and starts its rollout worker, which begins under watch."""
        self._syncs = self.trainer.model_version
        begun_at_step = self.trainer.state.global_step
        self._takings.prefix = f"{begun_at_step}+" if begun_at_step else ""
        self.run.add_config(self._config())
        worker = self.trainer.rollout_worker
        loop_class = getattr(worker, "_loop_cls", None)
        if isinstance(loop_class, type) and self.run.run_dir is not None:
            recording = Recording(str(self.run.run_dir), f"{self.run.worker_id}-rollouts", self._takings.prefix)
            worker._loop_cls = functools.partial(start_loop, loop_class, recording)
        return self.run.activity("startup")

    def _end(self, call: Call) -> None:
        if self._queue is not None:
            self._queue.is_watched = False
        self._takings.abandon()

    def _kept(self, call: Call, item: Any) -> None:
        if call.args[0].queue is self._queue:
            args = self.trainer.args
            longest = args.token_budget if args.token_budget and args.token_budget > 0 else None
            self._takings.keep(item, longest)

    def _packing(self, call: Call) -> Phase | None:
        return self.run.activity("other") if self._is_ours(call.args[0]) else None

    def _packed(self, call: Call) -> None:
        if self._is_ours(call.args[0]) and call.error is None:
            (rows,) = call.args[1]
            self._takings.pack(rows, self.trainer.accelerator.process_index)

    def _is_ours(self, collator: Any) -> bool:
        return collator.metrics is self.trainer._metrics["train"]

    def _train(self, call: Call) -> None:
        """A micro-batch is trained on; the first of a step begins it."""
        step, version = self.steps.number, self.version
        publishes = step % self.trainer.args.weight_sync_steps == 0
        self.steps.begin(version, version + publishes)
        batch = self._takings.next_batch()
        self._importance.begin(version, batch, is_published=self.trainer.state.global_step == self._synced_at_step)
        if batch is not None:
            rewards = [taken.reward for taken in batch.own if taken.reward is not None]
            self.steps.add(len(batch.own), batch.own_tokens, rewards)
            self._takings.train(batch, step, version)

    def _lost(self, call: Call) -> None:
        self._importance.lost(call)
        if not self._is_main and call.error is None:
            inputs = call.argument(2, "inputs")
            self.steps.add(int(inputs["segment_id"].max()) + 1, int(inputs["attention_mask"].sum()))

    def _synced(self, call: Call) -> None:
        self._syncs += call.error is None
        self._synced_at_step = self.trainer.state.global_step

    def _part(self, part: str, call: Call) -> Phase:
        return self.run.weight_update_part(part, self.version + 1)

    def _send(self, call: Call) -> Phase:
        if self._bytes_sent is None:
            self._bytes_sent = _bytes_of(self.trainer)
        return self.run.transfer_weights(self.version + 1, bytes=self._bytes_sent)

    def _sent(self, call: Call) -> None:
        client = getattr(call.args[0], "vllm", None)
        is_own = type(call.args[0]).__module__.startswith("trl.")
        if call.error is None and is_own and client is not None:
            _label(client.server_url, self.version + 1, self.run)

    def _config(self) -> dict[str, object]:
        args = self.trainer.args
        packs_tokens = args.token_budget is None or args.token_budget > 0
        own = {
            **({"samples_per_step": None} if packs_tokens else {}),
            "max_staleness": args.max_staleness,
            "staleness_policy": "drop",
            **limits_of(self.trainer.rollout_worker, _capacity(self.trainer), args.num_generations),
            "queue_policy": "wait",
            "queue_order": "fifo",
            "dispatch": "least_loaded",
            # Accelerate holds the next micro-batch before it hands out the present one.
            "batches_ahead": 1 / args.gradient_accumulation_steps,
        }
        return self.config(args.num_generations, self.trainer.accelerator.unwrap_model(self.trainer.model), own)


def instrument(trainer: Any, run: Run | None = None) -> AsyncGrpoHook | None:
    """Record an AsyncGRPOTrainer; call it before `train()` on every rank. Returns None without a run.

    The run is `run`, else this process's run, else one started from the environment, as a trainer.
    """
    return hook_of(trainer, "trainer", run, AsyncGrpoHook)


def _part_of(trainer: Any, name: str) -> Any:
    """A class from the module that defines the trainer, whichever subclass of it this is."""
    modules = (sys.modules[kind.__module__] for kind in type(trainer).__mro__)
    return next((getattr(module, name) for module in modules if hasattr(module, name)), None)


def _capacity(trainer: Any) -> int | None:
    """Rows that the queue can hold; None when it has no end."""
    found = getattr(trainer.rollout_queue, "maxsize", None)
    most = getattr(trainer.rollout_queue, "_maxsize", None) if found is None else found
    limit = trainer.args.queue_maxsize if most is None else most
    return limit if limit and limit > 0 else None


def _bytes_of(trainer: Any) -> int | None:
    """Bytes of one sync, as TRL streams it."""
    stream = _part_of(trainer, "_iter_vllm_named_params")
    if stream is None:
        return None
    parameters = (parameter for _, parameter in stream(trainer.accelerator.unwrap_model(trainer.model)))
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _label(server_url: str, version: int, run: Run) -> None:
    """Have vLLM say this version of every token that it samples from now on."""
    request = urllib.request.Request(
        f"{server_url}/update_weight_version",
        json.dumps({"new_version": str(version)}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request, timeout=_LABEL_TIMEOUT_S).close()
    except Exception as error:  # An older vLLM has no such address; its tokens then have versions by time.
        run.faults.note("weight version", error)
