"""vLLM's log: a line every ten seconds with throughputs and current requests.

A line averages over its window, so its row has the tokens but no forward passes. The duration of a pass can be derived
only from windows in which the batch stayed the same and was kept full.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rlscope.errors import ImportFileError
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import ConsoleLine, LogFile, engine_name, prints, process_of, safe_worker_id
from rlscope.importers.log_clock import LogClock, open_clock
from rlscope.importers.quantities import MOST_GPUS, SECOND_NS, RefusedNumberError, amount, whole
from rlscope.importers.rows import Tally
from rlscope.importers.spans import Spans
from rlscope.importers.target import ImportTarget
from rlscope.trace.imported import Certainty

_STATS: Final = re.compile(
    r"(?:^|[\[\"]|(?:INFO|DEBUG) )(?P<ts>(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?)\b"
    r".{0,300}?(?:Engine (?P<engine>\d+): |(?P<engines>\d+) Engines Aggregated: )?"
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: (?P<output>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, (?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>\d+) reqs"
)
"""vLLM's own time has neither year nor zone; the time of a container or of another logger's format precedes it."""
_KV: Final = re.compile(r"KV cache usage: ([\d.]+)%")
_PREEMPTIONS: Final = re.compile(r"Preemptions: (\d+)")
_ACCEPTED: Final = re.compile(r"SpecDecoding metrics: .{0,200}?Mean acceptance length: ([\d.]+)")
_SETTINGS: Final[Mapping[str, re.Pattern[str]]] = {
    "kv_capacity_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "max_running": re.compile(r"['\"]?max_num_seqs['\"]?[=:] ?(\d{1,9})\b"),
    "tensor_parallel": re.compile(r"\btensor_parallel_size['\"]?[=:] ?(\d{1,6})\b"),
    "pipeline_parallel": re.compile(r"\bpipeline_parallel_size['\"]?[=:] ?(\d{1,6})\b"),
}
_OWN_PROCESSES: Final = re.compile(r"(?:APIServer|EngineCore|MainProcess)\w* pid=")
"""Prefixes of vLLM's own processes that print statistics, which look like Ray's."""
_USUAL_WINDOW_S: Final = 10
"""vLLM's default of VLLM_LOG_STATS_INTERVAL."""
_SURVEYED_WINDOWS: Final = 100
"""Number of windows at the start of the log from which their usual length is taken."""
_SAME_BATCH_RATIO: Final = 0.02
"""The batch stayed the same if the requests at both ends of a window differ by at most this share."""


class _Stats(NamedTuple):
    """One line of an engine."""

    time_ns: int
    prompt_per_s: float
    output_per_s: float
    running: int
    waiting: int
    kv_ratio: float | None
    preemptions: int | None
    """None if the line states none, as that of older versions and of most windows."""

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.waiting or self.prompt_per_s or self.output_per_s)


@dataclass(slots=True)
class _Engine:
    """An engine, or several that log as one, while its log is read."""

    worker_id: str
    count: int = 1
    last: _Stats | None = None
    rows: int = 0
    timed_rows: int = 0
    idle: Spans = field(default_factory=Spans)
    """Spans without requests."""


@dataclass(slots=True)
class _Reader:
    target: ImportTarget
    name: str
    """Name of an engine that Ray does not name."""
    clock: LogClock
    window_ns: int
    """Usual length of a window."""
    engines: dict[str, _Engine] = field(default_factory=dict[str, _Engine])
    settings: dict[str, int] = field(default_factory=dict[str, int])
    accepted_tokens: float = 1.0
    """Tokens that a pass of speculative decoding yields for each request, as last logged."""

    def take(self, line: ConsoleLine) -> None:
        """Read one line."""
        if "Avg prompt throughput" in line.text:
            if found := _STATS.search(line.text):
                self._take_stats(self._engine(line, found), found, line.text)
        elif found := _ACCEPTED.search(line.text):
            self.accepted_tokens = max(1.0, amount(found[1]))
        elif ("size" in line.text or "max_num_seqs" in line.text) and len(self.settings) < len(_SETTINGS):
            for name, pattern in _SETTINGS.items():
                if name not in self.settings and (found := pattern.search(line.text)):
                    self.settings[name] = whole(found[1].replace(",", ""))

    def _engine(self, line: ConsoleLine, found: re.Match[str]) -> _Engine:
        name = process_of(line, self.name, _OWN_PROCESSES)
        rank = whole(found["engine"] or 0)
        worker_id = safe_worker_id(f"{name}-{rank}" if rank else name)
        engine = self.engines.setdefault(worker_id, _Engine(worker_id))
        engine.count = whole(found["engines"] or 1, MOST_GPUS)
        return engine

    def _take_stats(self, engine: _Engine, found: re.Match[str], text: str) -> None:
        time_ns = self.clock.time_ns(found["ts"])
        if time_ns is None:
            return
        kv, preempted = _KV.search(text), _PREEMPTIONS.search(text)
        stats = _Stats(
            time_ns,
            amount(found["prompt"]),
            amount(found["output"]),
            whole(found["running"]),
            whole(found["waiting"]),
            amount(kv[1]) / 100 if kv else None,
            whole(preempted[1]) if preempted else None,
        )
        before, engine.last = engine.last, stats
        since_ns = self.window_ns if before is None else stats.time_ns - before.time_ns
        if since_ns <= 0:
            return
        # vLLM prints nothing while no token comes, even if a long prompt runs.
        is_after_silence = before is not None and not (before.prompt_per_s or before.output_per_s)
        window_ns = min(since_ns, self.window_ns + (0 if is_after_silence else SECOND_NS))
        self.target.extend_worker(engine.worker_id, stats.time_ns - window_ns, stats.time_ns)
        if before is not None and before.is_idle:
            engine.idle.add(before.time_ns, stats.time_ns - window_ns)
        if stats.is_idle:
            engine.idle.add(stats.time_ns - window_ns, stats.time_ns)
        elif stats.output_per_s or stats.prompt_per_s:
            self._add_window(engine, before, stats, window_ns)

    def _add_window(self, engine: _Engine, before: _Stats | None, stats: _Stats, window_ns: int) -> None:
        window_s = window_ns / SECOND_NS
        first = stats.running if before is None else before.running
        running = (first + stats.running) / 2
        decode_tokens = stats.output_per_s * window_s
        pass_tokens = running * self.accepted_tokens
        is_timed = before is not None and self._is_full(engine, before, stats) and decode_tokens >= pass_tokens > 0
        capacity = self._of_all(engine, "kv_capacity_tokens")
        row = {
            "worker_id": engine.worker_id,
            "start_ns": stats.time_ns - window_ns,
            "end_ns": stats.time_ns,
            "forward_passes": round(decode_tokens / pass_tokens) if is_timed else None,
            "busy_ns": window_ns if is_timed else None,
            "running": round(running),
            "waiting": stats.waiting,
            "decode_tokens": round(decode_tokens),
            "prefill_tokens": round(stats.prompt_per_s * window_s),
            "kv_used_tokens": None if stats.kv_ratio is None or capacity is None else round(stats.kv_ratio * capacity),
            "preemptions": stats.preemptions,
            "source": "log",
        }
        engine.rows += 1
        engine.timed_rows += is_timed
        self.target.add("engine_steps", row)

    def _is_full(self, engine: _Engine, before: _Stats, stats: _Stats) -> bool:
        """Return whether the batch stayed full in a window: equal at both ends, with a queue or at the limit."""
        if engine.count > 1 or abs(stats.running - before.running) > _SAME_BATCH_RATIO * max(
            stats.running, before.running
        ):
            return False
        cap = self.settings.get("max_running")
        return min(before.waiting, stats.waiting) > 0 or (cap is not None and stats.running >= cap)

    def finish(self) -> None:
        """Add the engines."""
        for engine in self.engines.values():
            engine.idle.write_idle(engine.worker_id, self.target)
            ranks = self.settings.get("tensor_parallel")
            gpus = self.target.options.gpus_per_engine or (ranks and ranks * self.settings.get("pipeline_parallel", 1))
            self.target.add_engine(
                engine.worker_id,
                gpu_count=gpus and gpus * engine.count,
                kv_capacity_tokens=self._of_all(engine, "kv_capacity_tokens"),
                max_running=self._of_all(engine, "max_running"),
            )

    def _of_all(self, engine: _Engine, setting: str) -> int | None:
        """Return the sum of a setting of each engine that the log states, over those that log as one."""
        stated = self.settings.get(setting)
        return stated and stated * engine.count


def _read(source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Add the engines of a log with their windows. Raises ImportFileError if there are none."""
    if not target.claim(source.path, VLLM_LOG.kind):
        return
    clock, log = open_clock(source.path, _STATS, target), LogFile(source.path, Tally(progress))
    engines: Collection[_Engine] = ()
    if clock is not None:
        window_ns = _usual_window_s(source.path, copy(clock)) * SECOND_NS
        reader = _Reader(target, engine_name(source.path, target), clock, window_ns)
        for line in log:
            try:
                reader.take(line)
            except RefusedNumberError:
                log.tally.bad_lines += 1
        reader.finish()
        engines = reader.engines.values()
    if not any(engine.rows or engine.idle.spans() for engine in engines):
        raise ImportFileError.of(
            source.path,
            found="no timed `Avg prompt throughput` line",
            expected="the log of a vLLM engine that logs its statistics",
            next_step="Remove disable_log_stats (--disable-log-stats) and set VLLM_LOGGING_LEVEL to INFO.",
        )
    _say(target, log, engines)
    target.add_file("engine log", log.tally.source_file(source.path))


def _usual_window_s(path: Path, clock: LogClock) -> int:
    """Return the most frequent time between two lines of an engine; vLLM's default if none was seen twice."""
    last_ns: dict[tuple[str, str | None], int] = {}
    lengths: list[int] = []
    for line in LogFile(path):
        found = _STATS.search(line.text) if "Avg prompt throughput" in line.text else None
        time_ns = clock.time_ns(found["ts"]) if found else None
        if found is None or time_ns is None:
            continue
        engine = process_of(line, "", _OWN_PROCESSES), found["engine"]
        if length_s := round((time_ns - last_ns.get(engine, time_ns)) / SECOND_NS):
            lengths.append(length_s)
        last_ns[engine] = time_ns
        if len(lengths) == _SURVEYED_WINDOWS:
            break
    (usual_s, count), *_ = Counter(lengths).most_common(1) or [(_USUAL_WINDOW_S, 0)]
    return usual_s if count > 1 else _USUAL_WINDOW_S


def _say(target: ImportTarget, log: LogFile, engines: Collection[_Engine]) -> None:
    target.say_origin(
        "engine_steps", Certainty.INFERRED, "the batch size of a window is the mean of the sizes at its ends"
    )
    timed, rows = sum(engine.timed_rows for engine in engines), sum(engine.rows for engine in engines)
    target.note(
        f"{timed:,} of {rows:,} windows in vLLM's log give an engine step time: their batch size stayed constant."
    )
    rule = "an engine is idle if it logs nothing after reporting zeros"
    target.say_origins(Certainty.INFERRED, "activities", rule=rule)
    log.say_merged(target, {engine.worker_id: engine.rows for engine in engines})


VLLM_LOG: Final = Importer("vllm", "vLLM engine log", partial(prints, _STATS), _read, is_companion=True)
