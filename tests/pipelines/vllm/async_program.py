"""AsyncLLM with its engine core in a process of its own, recorded by the plug-in alone, while its weights change.

Three updates in flight: paused with the cache kept, paused with the cache thrown away, and without a pause. Writes
what the front end got, and how long it knows the engine to have been paused or without requests, at least.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from examples.vllm_cpu.environment import prepare
from tests.pipelines.processes import COUNTED

REQUESTS = 24
RESPONSE_TOKENS = 240
QUIET_S = 0.5
HELD_S = 0.1
TOKENS_BETWEEN = 30


class Client:
    """What one client of the engine sends and sees."""

    def __init__(self, engine: Any, weights: str) -> None:
        self.engine, self.weights = engine, weights
        self.samples: dict[str, Any] = {}
        self.paused_s = 0.0
        self.sampled_tokens = 0

    async def generate(self, request_id: str, tokens: int) -> None:
        """One request to its end."""
        from vllm import SamplingParams

        from tests.pipelines.vllm.tiny import PROMPT

        parameters = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False)
        async for output in self.engine.generate({"prompt_token_ids": PROMPT}, parameters, request_id):
            self.sampled_tokens = max(self.sampled_tokens, len(output.outputs[0].token_ids))
        spans = [[span.version, span.start, span.end] for span in output.outputs[0].weight_versions]
        self.samples[request_id] = {"tokens": len(output.outputs[0].token_ids), "spans": spans}

    async def more_tokens(self) -> None:
        """Let the longest response grow by so many tokens."""
        wanted = self.sampled_tokens + TOKENS_BETWEEN
        while self.sampled_tokens < wanted:
            await asyncio.sleep(0.001)

    async def update(self, label: str, *, until_more_tokens: bool = False) -> None:
        """New weights in three calls; between the first two, tokens may be sampled."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self.engine.start_weight_update()
        if until_more_tokens:
            await self.more_tokens()
        await self.engine.update_weights(WeightTransferUpdateRequest(update_info={"path": self.weights}))
        await self.engine.finish_weight_update(weight_version=label)

    async def paused_update(self, label: str, *, clear_cache: bool) -> None:
        """New weights while nothing is generated, and a while after."""
        await self.engine.pause_generation(mode="keep", clear_cache=clear_cache)
        since_s = time.perf_counter()
        await self.update(label)
        await asyncio.sleep(HELD_S)
        self.paused_s += time.perf_counter() - since_s
        await self.engine.resume_generation()


async def serve(checkpoint: Path) -> dict[str, Any]:
    """The whole scenario."""
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from tests.pipelines.vllm.tiny import engine_arguments, save_tiny

    weights = save_tiny(checkpoint)
    arguments = engine_arguments(checkpoint, max_num_seqs=16, enable_prefix_caching=False, enable_log_requests=False)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    client = Client(engine, str(weights))
    await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
    await client.generate("first", 5)
    await asyncio.sleep(QUIET_S)
    client.sampled_tokens = 0
    requests = [asyncio.create_task(client.generate(f"request-{n}", RESPONSE_TOKENS)) for n in range(REQUESTS)]
    await client.more_tokens()
    await client.paused_update("1", clear_cache=False)
    await client.more_tokens()
    await client.paused_update("2", clear_cache=True)
    await client.more_tokens()
    await client.update("3", until_more_tokens=True)
    requests.pop().cancel()
    await asyncio.gather(*requests)
    engine.shutdown()
    return {"samples": client.samples, "paused_s": client.paused_s, "quiet_s": QUIET_S}


def main() -> None:
    """`RUN_DIR`."""
    (run_dir,) = sys.argv[1:]
    os.environ.update(RLSCOPE_RUN_DIR=run_dir, RLSCOPE_WORKER_ID="engine")
    prepare()
    with tempfile.TemporaryDirectory() as checkpoint:
        said = asyncio.run(serve(Path(checkpoint)))
    Path(run_dir, COUNTED).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
