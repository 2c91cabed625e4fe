"""Runs transformers' continuous batching under its hook, with too little cache, pauses and new weights.

Writes what was counted without the hook: the engine's own results, and batches as its scheduler made them.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import rlscope_otel
import torch
from rlscope_otel.integrations import transformers_cb
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs

from examples.trl_async.tiny_model import EOS, PAD, save_tiny

REQUESTS, UPDATES, PAGES, PAGE_TOKENS = 64, 3, 24, 16
LIMIT_S = 100
batches: list[int] = []
queries: list[int] = []
prepare = ContinuousBatchingIOs.prepare_batch_tensors


def counted_prepare(self, requests_in_batch, *arguments, **keywords):
    batches.append(len(requests_in_batch))
    queries.append(sum(future.query_length for future in requests_in_batch))
    return prepare(self, requests_in_batch, *arguments, **keywords)


def make_manager(scratch: Path):
    model = AutoModelForCausalLM.from_pretrained(
        save_tiny(scratch / "model"), attn_implementation="sdpa", dtype=torch.float32
    ).eval()
    return model.init_continuous_batching(
        generation_config=GenerationConfig(
            max_new_tokens=48, do_sample=True, temperature=1.0, top_k=0, eos_token_id=EOS, pad_token_id=PAD
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=PAGES,
            max_batch_tokens=256,
            max_requests_per_batch=32,
            return_logprobs=True,
            use_cuda_graph=False,
        ),
    )


def generate(manager, engine) -> dict[str, int]:
    """Tokens of every request by its id; a version more after each quarter of them."""
    for number in range(REQUESTS):
        manager.add_request([4, 20 + number, 7, 5], request_id=f"r{number}")
    tokens: dict[str, int] = {}
    deadline_s = time.monotonic() + LIMIT_S
    while len(tokens) < REQUESTS and time.monotonic() < deadline_s:
        result = manager.get_result(timeout=0.05)
        if result is not None:
            tokens[result.request_id] = len(result.generated_tokens)
        if engine.version < UPDATES and len(tokens) > (engine.version + 1) * REQUESTS // 4:
            with manager.pause(), engine.apply(engine.version + 1), torch.no_grad():
                for weight in manager.model.parameters():
                    weight.mul_(1.001)
    return tokens


if __name__ == "__main__":
    torch.set_num_threads(1)
    ContinuousBatchingIOs.prepare_batch_tensors = counted_prepare
    run_dir = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch, rlscope_otel.start_run(run_dir, "sampler", "sampler") as run:
        manager = make_manager(Path(scratch))
        engine = transformers_cb.instrument(manager, run)
        manager.start()
        tokens = generate(manager, engine)
        manager.stop()
        assert run.faults.counts == {}
    counted = {
        "tokens": tokens,
        "batches": batches,
        "queries": queries,
        "updates": UPDATES,
        "capacity_tokens": PAGES * PAGE_TOKENS,
    }
    (run_dir / "counted.json").write_text(json.dumps(counted), encoding="utf-8")
