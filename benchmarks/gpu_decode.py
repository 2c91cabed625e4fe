"""Decode-step latency of a real decoder on this machine's GPU, and how well a curve fitted to small batches carries.

A decoder with random weights (RMS norm, rotary positions, grouped-query attention over a KV cache, gated MLP, output
head, greedy sampling) repeats one decode step at each batch size and context; on a GPU the step is captured as a CUDA
graph, as engines do, so that launching kernels is not what is measured. The table is written as CSV, and fitted and
judged as `latency_fit.py` does. What an engine adds between passes is not in it, and it is one GPU.

    python benchmarks/gpu_decode.py [--models Qwen2.5-0.5B Qwen2.5-1.5B Qwen2.5-7B] [--eager]
    python benchmarks/gpu_decode.py --fit-only
    python benchmarks/gpu_decode.py --device cpu --models tiny --contexts 64 --table t.csv --figures t.txt

The second line fits the kept table again, which needs no GPU: for who changes the model. The third tries the script
itself where there is no GPU.

Needs torch. Writes `benchmarks/data/gpu_decode.csv` and `benchmarks/gpu_decode.txt`, or the paths given.
"""

import argparse
import csv
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from latency_fit import MODELS, dense, read_series, report
from torch import Tensor, nn
from torch.nn import functional

TABLE = Path(__file__).parent / "data" / "gpu_decode.csv"
FIGURES = Path(__file__).with_suffix(".txt")
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
WARM_UP_STEPS = 5
ROUNDS = 7
STEPS_PER_ROUND = 20
FREE_MEMORY_RATIO = 0.85
"""Of what is free, for the cache: activations and the graph need the rest."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of the Qwen2.5 kind; the output head shares the embedding where `tied`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool


SHAPES = {
    "tiny": Shape(64, 2, 4, 2, 16, 128, 256, tied=True),
    "Qwen2.5-0.5B": Shape(896, 24, 14, 2, 64, 4864, 151_936, tied=True),
    "Qwen2.5-1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151_936, tied=True),
    "Qwen2.5-7B": Shape(3584, 28, 28, 4, 128, 18_944, 152_064, tied=False),
}


class Layer(nn.Module):
    """Attention over the cache, then the gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.query_key_value = nn.Linear(shape.hidden, width)
        self.output = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(shape.hidden)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, hidden: Tensor, cache: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """cache: keys and values of this layer, (2, batch, kv heads, tokens, head dim); its last place is written."""
        shape, batch = self.shape, hidden.shape[0]
        mixed = self.query_key_value(self.attention_norm(hidden)).view(batch, -1, 1, shape.head_dim)
        query, key, value = mixed.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
        cache[0, :, :, -1:] = turned(key, turn)
        cache[1, :, :, -1:] = value
        seen = functional.scaled_dot_product_attention(turned(query, turn), cache[0], cache[1], enable_gqa=True)
        hidden = hidden + self.output(seen.reshape(batch, -1))
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(functional.silu(gate) * up)


class Decoder(nn.Module):
    """Token ids in, the next token ids out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, cache: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        hidden = self.embedding(tokens)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            hidden = layer(hidden, layer_cache, turn)
        return self.head(self.norm(hidden)).argmax(dim=-1)


def turned(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: every request is at the same one here."""
    cosine, sine = turn
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def turn_at(position: int, shape: Shape, weight: Tensor) -> tuple[Tensor, Tensor]:
    angles = position / 1e6 ** (torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    both = torch.cat((angles, angles)).to(weight)
    return both.cos(), both.sin()


def step_of(decoder: Decoder, shape: Shape, batch: int, context: int) -> Callable[[], None]:
    """One decode step at a fixed context, its tokens fed back in place."""
    weight = decoder.embedding.weight
    cache = torch.randn(
        (shape.layers, 2, batch, shape.kv_heads, context, shape.head_dim), dtype=weight.dtype, device=weight.device
    )
    tokens = torch.randint(shape.vocabulary, (batch,), device=weight.device)
    turn = turn_at(context, shape, weight)

    def step() -> None:
        tokens.copy_(decoder(tokens, cache, turn))

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph, warmed up on a stream of its own as capture demands. It holds on to the step's tensors,
    whose memory the graph uses without owning it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_kept_alive: Callable[[], None] = step) -> None:
        graph.replay()

    return replay


def milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """Of one step: the median over rounds of a round's mean."""
    for _ in range(WARM_UP_STEPS):
        step()
    return median(round_ms(step, device) for _ in range(ROUNDS))


def round_ms(step: Callable[[], None], device: torch.device) -> float:
    synchronize(device)
    started_s = time.perf_counter()
    for _ in range(STEPS_PER_ROUND):
        step()
    synchronize(device)
    return (time.perf_counter() - started_s) / STEPS_PER_ROUND * 1e3


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fits(shape: Shape, batch: int, context: int, device: torch.device) -> bool:
    """Whether the cache fits in free memory; always on a processor."""
    if device.type != "cuda":
        return True
    torch.cuda.empty_cache()
    cache_bytes = 2 * 2 * shape.layers * batch * shape.kv_heads * context * shape.head_dim
    return cache_bytes < FREE_MEMORY_RATIO * torch.cuda.mem_get_info(device)[0]


def describe(name: str) -> None:
    """Tell the fit of the model's size, which is counted without its weights."""
    shape = SHAPES[name]
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in Decoder(shape).parameters())
    MODELS[name] = dense(parameters, shape.layers, shape.kv_heads, shape.head_dim)


@torch.inference_mode()
def measured(
    name: str, contexts: list[int], device: torch.device, *, eager: bool
) -> Iterator[tuple[str, int, int, float]]:
    """(model, batch, context, milliseconds) of every step that fits."""
    shape = SHAPES[name]
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        decoder = Decoder(shape).eval()
        torch.set_default_dtype(torch.float32)
    for context in contexts:
        for batch in BATCHES:
            if not fits(shape, batch, context, device):
                print(f"{name}: {batch} x {context} does not fit, left out")
                continue
            step = step_of(decoder, shape, batch, context)
            step = step if eager or device.type != "cuda" else captured(step)
            yield name, batch, context, milliseconds(step, device)
            del step


def write_table(path: Path, models: list[str], contexts: list[int], device: torch.device, *, eager: bool) -> str:
    """Measure every model into a CSV; the device's name."""
    system = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(("system", "model", "batch", "ctx", "total_ms"))
        for name in models:
            for model, batch, context, step_ms in measured(name, contexts, device, eager=eager):
                rows.writerow((system, model, batch, context, f"{step_ms:.5g}"))
                print(f"{model}: {batch} x {context}: {step_ms:.3f} ms", flush=True)
    return system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=list(SHAPES), default=[name for name in SHAPES if name != "tiny"]
    )
    parser.add_argument("--contexts", nargs="+", type=int, default=[512, 4096])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="launch every kernel instead of replaying a CUDA graph")
    parser.add_argument("--fit-only", action="store_true", help="fit the table that is there again; no GPU is needed")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--figures", type=Path, default=FIGURES)
    given = parser.parse_args()
    for name in SHAPES:
        describe(name)
    if given.fit_only:
        measured_on = given.figures.read_text(encoding="utf-8").splitlines()[:2]
        write_figures(given.figures, given.table, measured_on)
        return
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here; --device cpu --models tiny --contexts 64 tries the script itself")
    system = write_table(given.table, given.models, given.contexts, device, eager=given.eager)
    how = "eager" if given.eager or device.type != "cuda" else "CUDA graph"
    command = f"command: python benchmarks/gpu_decode.py --models {' '.join(given.models)}"
    measured_on = f"device:  {system}, torch {torch.__version__}, bf16, {how}; one GPU, no engine"
    write_figures(given.figures, given.table, [command, measured_on])


def write_figures(path: Path, table: Path, measured_on: list[str]) -> None:
    """What was measured, and on what; then what the fit makes of the table."""
    with path.open("w", encoding="utf-8") as out:
        print("\n".join(measured_on), file=out)
        report(read_series(table), out)
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
