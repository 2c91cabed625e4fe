"""An engine in this process under the hook, beside a statistics logger of vLLM's own that knows nothing of the hook.

`calm`: room for all. `pressure`: a KV cache that is too small, so that requests are preempted. Both take weights in
flight and abort a request. Writes what vLLM itself said of each pass and of each request.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from examples.vllm_cpu.environment import prepare
from tests.pipelines.processes import COUNTED

UPDATES = {40: "1", 90: "2"}
"""Label of the update before each of these steps."""
ABORT_BEFORE_STEP = 20
BLOCKS_UNDER_PRESSURE = 40


def logger_class(said: list[dict[str, Any]]) -> type:
    """A logger that keeps what vLLM says of each iteration."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Logger(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def log_engine_initialized(self) -> None: ...

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            details = scheduler_stats.iteration_details
            if details is not None:
                said.append(_iteration(scheduler_stats, iteration_stats, details))

    return Logger


def _iteration(scheduler: Any, iteration: Any, details: Any) -> dict[str, Any]:
    finished = iteration.finished_requests if iteration else []
    return {
        "running": details.num_ctx_requests + details.num_generation_requests,
        "prompt_tokens": details.num_ctx_tokens,
        "scheduled_tokens": details.num_ctx_tokens + details.num_generation_tokens,
        "sampled_tokens": iteration.num_generation_tokens if iteration else 0,
        "waiting": scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs,
        "kv_usage": scheduler.kv_cache_usage,
        "finished": len(finished),
        "preempted": iteration.num_preempted_reqs if iteration else 0,
        "preemptions_of": {done.request_id: done.num_preemptions for done in finished},
    }


def run_engine(run_dir: Path, checkpoint: Path, pressure: bool) -> dict[str, Any]:
    """Generate, and return what vLLM said."""
    import rlscope_otel
    from rlscope_otel.integrations.vllm import instrument
    from vllm import EngineArgs, LLMEngine, SamplingParams

    from tests.pipelines.vllm.tiny import PROMPT, engine_arguments, save_tiny

    weights = save_tiny(checkpoint)
    said: list[dict[str, Any]] = []
    arguments = engine_arguments(
        checkpoint,
        max_num_seqs=32,
        enable_prefix_caching=True,
        disable_log_stats=False,
        enable_logging_iteration_details=True,
        num_gpu_blocks_override=BLOCKS_UNDER_PRESSURE if pressure else None,
    )
    with rlscope_otel.start_run(run_dir, "sampler", "engine", gpu_count=1) as run:
        with run.activity("startup"):
            engine = LLMEngine.from_engine_args(EngineArgs(**arguments), stat_loggers=[logger_class(said)])
            engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": {}})
        instrument(engine, run)
        for number in range(40):
            # Prompts of more than a block, so that later ones find it in the prefix cache.
            prompt = {"prompt_token_ids": PROMPT * 8 + [number % 10]}
            lengths = SamplingParams(max_tokens=10 + 4 * number, ignore_eos=True, detokenize=False)
            engine.add_request(f"request-{number}", prompt, lengths)
        samples = _step_to_the_end(engine, str(weights))
        capacity_tokens = engine.vllm_config.cache_config.kv_cache_size_tokens
        faults = dict(run.faults.counts)
    return {"passes": said, "samples": samples, "capacity_tokens": capacity_tokens, "faults": faults}


def _step_to_the_end(engine: Any, weights: str) -> dict[str, Any]:
    samples: dict[str, Any] = {}
    step = 0
    while engine.has_unfinished_requests():
        if step == ABORT_BEFORE_STEP:
            engine.abort_request(["request-39"])
        if step in UPDATES:
            engine.collective_rpc("start_weight_update")
            engine.collective_rpc("update_weights", kwargs={"update_info": {"path": weights}})
            engine.collective_rpc("finish_weight_update")
            engine.set_weight_version(UPDATES[step])
        for output in engine.step():
            if output.finished:
                samples[output.request_id] = _said_of(output)
        step += 1
    return samples


def _said_of(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "cached_tokens": output.num_cached_tokens,
        "spans": [[span.version, span.start, span.end] for span in completion.weight_versions],
    }


def main() -> None:
    """`RUN_DIR calm|pressure`."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    prepare()
    run_dir, regime = sys.argv[1:]
    with tempfile.TemporaryDirectory() as checkpoint:
        said = run_engine(Path(run_dir), Path(checkpoint), regime == "pressure")
    Path(run_dir, COUNTED).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
