"""Reads the state of each engine from a Prometheus metrics page of vLLM or SGLang.

Names as in vLLM 0.32.0 and SGLang 0.5.23. A series that a version lacks is None here. SGLang updates most of its series
only every few dozen passes (`--decode-log-interval`) and its idle time once a second, so its values come in bursts.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

# Reads the text that a Prometheus endpoint serves: series names, labels and values.
#
# Help, types, timestamps and exemplars are passed over; a line that is no series is too.


_SERIES: Final = re.compile(
    r'(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(?P<value>\S+)'
)
_LABEL: Final = re.compile(r'(?P<name>[A-Za-z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Point(NamedTuple):
    """One series and its value."""

    name: str
    labels: dict[str, str]
    value: float


def points_of(page: str) -> Iterator[Point]:
    """The series of a page, in its order."""
    for line in page.splitlines():
        found = None if line.startswith("#") else _SERIES.match(line)
        value = None if found is None else _number(found["value"])
        if found is not None and value is not None:
            labels = {label["name"]: _plain(label["value"]) for label in _LABEL.finditer(found["labels"] or "")}
            yield Point(found["name"], labels, value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(escaped: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), escaped)


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine at one moment; the counters have grown since the engine started."""

    running: int
    waiting: int
    decode_tokens: int
    prefill_tokens: int
    passes: int | None = None
    busy_s: float | None = None
    idle_s: float | None = None
    preemptions: int | None = None
    kv_used_tokens: int | None = None
    kv_capacity_tokens: int | None = None

    @property
    def has_requests(self) -> bool:
        """Whether a request runs or waits."""
        return self.running + self.waiting > 0

    @property
    def tokens(self) -> int:
        """Tokens computed since the engine started."""
        return self.decode_tokens + self.prefill_tokens

    def is_restart_of(self, earlier: "Reading") -> bool:
        """Whether a counter has decreased: the engine was restarted in between."""
        mine, theirs = self._counters(), earlier._counters()
        return any(new is not None and old is not None and new < old for new, old in zip(mine, theirs, strict=True))

    def _counters(self) -> tuple[float | None, ...]:
        return (self.decode_tokens, self.prefill_tokens, self.passes, self.busy_s, self.idle_s, self.preemptions)


def readings_of(points: Iterable[Point]) -> dict[str, Reading]:
    """The reading of each engine on a page, by its name there; empty for a page of something else."""
    by_engine: dict[str, dict[str, list[Point]]] = {}
    for point in points:
        engine = _engine_of(point)
        if engine is not None and math.isfinite(point.value):
            by_engine.setdefault(engine, {}).setdefault(point.labels.get("tp_rank", "0"), []).append(point)
    # Of the ranks of an engine, the first schedules; others may repeat its series.
    firsts = {engine: ranks[min(ranks, key=lambda rank: (len(rank), rank))] for engine, ranks in by_engine.items()}
    found = ((engine, _reading(own)) for engine, own in firsts.items())
    return {engine: reading for engine, reading in found if reading is not None}


def _engine_of(point: Point) -> str | None:
    """vLLM labels each engine; SGLang labels ranks, and each data-parallel rank schedules for itself.

    If these share a tensor-parallel group (--enable-dp-attention), the tp_rank of their first ranks is not 0. With
    --enable-priority-scheduling, requests are also counted by priority, beside their total.
    """
    if point.name.startswith("vllm:"):
        return point.labels.get("engine")
    if (
        point.name.startswith("sglang:")
        and point.labels.get("pp_rank", "0") == "0"
        and not point.labels.get("priority")
    ):
        return point.labels.get("dp_rank", "0")
    return None


def _reading(points: list[Point]) -> Reading | None:
    values = _Values(points)
    return _vllm(values) if points[0].name.startswith("vllm:") else _sglang(values)


class _Values:
    """The series of one engine, added up over the labels that nobody asks for."""

    def __init__(self, points: list[Point]) -> None:
        self._points = points

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of the series of a name with these labels. None if there is none."""
        found = [point.value for point in self._points if point.name == name and labels.items() <= point.labels.items()]
        return sum(found) if found else None

    def count(self, name: str, **labels: str) -> int | None:
        """Return the sum as a whole number. None if there is none."""
        total = self.total(name, **labels)
        return None if total is None else round(total)

    def label(self, name: str, label: str) -> int | None:
        """Return a number that a series has as a label. None if it has none."""
        texts = [point.labels.get(label, "") for point in self._points if point.name == name]
        return int(texts[0]) if texts and texts[0].isdecimal() else None


def _vllm(values: _Values) -> Reading | None:
    running = values.count("vllm:num_requests_running")
    if running is None:
        return None
    names = "kv_cache_size_tokens", "num_gpu_blocks", "block_size"
    stated, blocks, block_tokens = (values.label("vllm:cache_config_info", name) for name in names)
    # Layers of a hybrid model share blocks unevenly. Before vLLM stated the size, blocks times their size were known.
    capacity = stated or (blocks * block_tokens if blocks and block_tokens else None)
    used_ratio = values.total("vllm:kv_cache_usage_perc")
    return Reading(
        running=running,
        waiting=values.count("vllm:num_requests_waiting") or 0,
        decode_tokens=values.count("vllm:generation_tokens_total") or 0,
        prefill_tokens=(values.count("vllm:prompt_tokens_total") or 0)
        - (values.count("vllm:prompt_tokens_cached_total") or 0),
        passes=values.count("vllm:iteration_tokens_total_count"),
        preemptions=values.count("vllm:num_preemptions_total"),
        kv_used_tokens=round(used_ratio * capacity) if capacity and used_ratio is not None else None,
        kv_capacity_tokens=capacity,
    )


def _sglang(values: _Values) -> Reading | None:
    running = values.count("sglang:num_running_reqs")
    if running is None:
        return None
    computed: Final = "sglang:realtime_tokens_total"
    return Reading(
        running=running,
        waiting=values.count("sglang:num_queue_reqs") or 0,
        decode_tokens=values.count(computed, mode="decode") or 0,
        prefill_tokens=values.count(computed, mode="prefill_compute") or 0,
        busy_s=values.total("sglang:forward_execution_seconds_total"),
        idle_s=values.total("sglang:scheduler_idle_seconds_total"),
        preemptions=values.count("sglang:num_retracted_requests_total"),
        kv_used_tokens=values.count("sglang:kv_used_tokens"),
        kv_capacity_tokens=values.count("sglang:max_total_num_tokens"),
    )
