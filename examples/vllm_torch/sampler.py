"""The sampler process: vLLM's engine in it, prompts in, finished groups out, new weights between two steps."""

import random
import time
from dataclasses import dataclass, field

from rlscope_otel import Run
from rlscope_otel.integrations.request_ids import RequestName, name_of, request_id_of
from rlscope_otel.integrations.vllm import instrument
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.config import WeightTransferConfig

from examples.pipeline_rl.counts import SamplerCounts
from examples.pipeline_rl.groups import FinishedGroup, FinishedSample
from examples.pipeline_rl.task import ANSWER_VOCABULARY, END, draw_target, prompt_of
from examples.vllm_cpu.shared_file import BACKEND
from examples.vllm_torch.links import Links
from examples.vllm_torch.options import Options

POLL_S = 0.001
# vLLM's name for the weights that it started with.
_INITIAL_LABEL = "default"

Spans = list[tuple[str, int, int]]
"""vLLM's own word on which label sampled which of a response's tokens."""


@dataclass(slots=True)
class EngineCounts(SamplerCounts):
    """What the engine did, as vLLM says and not the hooks."""

    weight_versions: dict[str, Spans] = field(default_factory=dict[str, Spans])
    """By sample."""


@dataclass(slots=True)
class OpenGroup:
    """A prompt whose responses are not all in the queue."""

    target: int
    finished: list[FinishedSample] = field(default_factory=list[FinishedSample])


class Sampler:
    """Keeps the engine full while the queue has room."""

    def __init__(self, options: Options, links: Links, run: Run, engine: LLMEngine) -> None:
        self.options, self.links, self.run, self.engine = options, links, run, engine
        self.counts = EngineCounts(run.worker_id or "sampler")
        self.version = 0
        self._random = random.Random(options.seed)
        self._open: dict[str, OpenGroup] = {}
        self._outbox: list[str] = []
        self._groups_started = 0
        self._sampling = SamplingParams(
            temperature=1.0,
            max_tokens=options.response_cap,
            logprobs=0,
            stop_token_ids=[END],
            allowed_token_ids=list(range(ANSWER_VOCABULARY)),
            detokenize=False,
        )

    def generate(self) -> EngineCounts:
        """Sample until told to stop."""
        start_cpu_s = time.process_time()
        while not self.links.stop.is_set():
            self._take_new_weights()
            self._deliver()
            self._admit()
            if self.engine.has_unfinished_requests():
                self._step()
            else:
                self._wait()
        self.counts.samples_unfinished = self.engine.get_num_unfinished_requests()
        self.counts.cpu_s = time.process_time() - start_cpu_s
        return self.counts

    def _take_new_weights(self) -> None:
        mailbox = self.links.mailbox
        if mailbox.version == self.version:
            return
        with mailbox.held() as version:
            self.engine.collective_rpc("start_weight_update")
            self.engine.collective_rpc("update_weights", kwargs={"update_info": {"path": str(mailbox.path)}})
            self.engine.collective_rpc("finish_weight_update")
            self.engine.set_weight_version(str(version))
        self.version = version
        self.counts.weight_updates += 1

    def _deliver(self) -> None:
        while self._outbox and self.links.gate.try_queue(0, self.options.group):
            group_id = self._outbox.pop(0)
            group = self._open.pop(group_id)
            self.links.groups.send(FinishedGroup(group_id, group.target, tuple(group.finished), self.run.now_ns()))

    def _admit(self) -> None:
        while self.engine.get_num_unfinished_requests() < self.options.slots and self._blocked_by() is None:
            self._start_group()

    def _blocked_by(self) -> str | None:
        """Why no new group may start, as a wait reason; None when one may."""
        allowed = (self.version + 1) * self.options.groups_per_step
        if self.options.synchronous and self._groups_started >= allowed:
            return "barrier"
        return "backpressure" if self._outbox or not self.links.gate.has_room(self.options.group) else None

    def _start_group(self) -> None:
        group_id, target = f"group-{self._groups_started}", draw_target(self._random)
        self._groups_started += 1
        self._open[group_id] = OpenGroup(target)
        for member in range(self.options.group):
            name = RequestName(f"{group_id}/{member}", group_id)
            prompt = {"prompt_token_ids": list(prompt_of(target))}
            self.engine.add_request(request_id_of(name), prompt, self._sampling)

    def _step(self) -> None:
        for output in self.engine.step():
            if output.finished:
                self._finish(output)

    def _finish(self, output: RequestOutput) -> None:
        name, completion = name_of(output.request_id), output.outputs[0]
        spans = [(span.version, span.start, span.end) for span in completion.weight_versions]
        sample = FinishedSample(
            name.sample_id,
            tuple(completion.token_ids),
            tuple(
                chosen[token].logprob for chosen, token in zip(completion.logprobs, completion.token_ids, strict=True)
            ),
            tuple(version_of(label) for label, start, end in spans for _ in range(start, end)),
        )
        self.counts.weight_versions[name.sample_id] = spans
        self.counts.samples_finished += 1
        self.counts.tokens_generated += len(sample.tokens)
        group = self._open[name.group_id]
        group.finished.append(sample)
        if len(group.finished) == self.options.group:
            self._outbox.append(name.group_id)

    def _wait(self) -> None:
        reason = self._blocked_by()
        if reason is None:
            return
        with self.run.wait(reason):
            while self._blocked_by() == reason and not self._has_something_to_do():
                time.sleep(POLL_S)

    def _has_something_to_do(self) -> bool:
        has_room = bool(self._outbox) and self.links.gate.has_room(self.options.group)
        return has_room or self.links.mailbox.version != self.version or self.links.stop.is_set()


def version_of(label: str) -> int:
    """The pipeline labels its weights with the number of their publication."""
    return 0 if label == _INITIAL_LABEL else int(label)


def make_engine(options: Options, links: Links) -> LLMEngine:
    """vLLM's engine in this process, with the checkpoint's weights."""
    arguments = EngineArgs(
        model=str(links.checkpoint),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=options.context_tokens,
        max_num_seqs=options.slots,
        seed=options.seed,
        enable_prefix_caching=False,
        # Of the tokens that are allowed, as the trainer computes them.
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        disable_log_stats=True,
    )
    engine = LLMEngine.from_engine_args(arguments)
    engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": {}})
    return engine


def sample_until_stopped(options: Options, links: Links, run: Run) -> EngineCounts:
    """The sampler's work between its start and its end."""
    with run.activity("startup"):
        engine = make_engine(options, links)
    instrument(engine, run)
    return Sampler(options, links, run, engine).generate()
