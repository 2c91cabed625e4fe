"""vLLM's log: a line every ten seconds with throughputs and current requests, and the progress bar of `LLM.generate`.

A line averages over its window, so its row has the tokens but no forward passes. The duration of a pass can be derived
only from windows in which the batch stayed the same and was kept full.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from rlscope.errors import ImportFileError
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import (
    ConsoleLine,
    LogClock,
    LogFile,
    clean_lines,
    open_clock,
    process_of,
    safe_worker_id,
    to_ns,
)
from rlscope.importers.quantities import MOST_GPUS, RefusedNumberError, amount, whole
from rlscope.importers.spans import Spans
from rlscope.importers.target import ImportOptions, ImportTarget
from rlscope.trace.imported import Certainty

_STATS: Final = re.compile(
    r"(?:INFO|DEBUG) (?P<ts>\d\d-\d\d \d\d:\d\d:\d\d) (?:\[[^\]]{0,200}\]|\S{1,200}\]) "
    r"(?:Engine (?P<engine>\d+): |(?P<engines>\d+) Engines Aggregated: )?"
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: (?P<output>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, (?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>\d+) reqs"
)
_KV: Final = re.compile(r"KV cache usage: ([\d.]+)%")
_BAR: Final = re.compile(
    r"Processed prompts: *\d+%(?:[^/]*\D)?(?P<done>\d+)/(?P<total>\d+) \[(?P<elapsed>[\d:]+)<"
    r".*output: (?P<per_s>[\d.]+) toks/s"
)
_SETTINGS: Final[Mapping[str, re.Pattern[str]]] = {
    "kv_capacity_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "max_running": re.compile(r"['\"]?max_num_seqs['\"]?[=:] ?(\d{1,9})\b"),
    "gpus": re.compile(r"tensor_parallel_size['\"]?[=:] ?(\d{1,6})\b"),
}
_OWN_PROCESSES: Final = re.compile(r"(?:APIServer|EngineCore|MainProcess|Worker)\w* pid=")
"""Prefixes of vLLM's own processes, which look like Ray's."""
_USUAL_WINDOW_S: Final = 10.0
_SAME_BATCH_RATIO: Final = 0.02
"""The batch stayed the same if the requests at both ends of a window differ by at most this share."""
_SECOND_NS: Final = 1_000_000_000


class _Stats(NamedTuple):
    """One line of an engine."""

    time_ns: int
    prompt_per_s: float
    output_per_s: float
    running: int
    waiting: int
    kv_ratio: float | None

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.waiting or self.prompt_per_s or self.output_per_s)


@dataclass(slots=True)
class _Engine:
    """An engine, or several that log as one, while its log is read."""

    worker_id: str
    count: int = 1
    last: _Stats | None = None
    window_ns: int = to_ns(_USUAL_WINDOW_S)
    end_ns: int = 0
    """End of the last row from its progress bar."""
    rows: int = 0
    timed_rows: int = 0
    idle: Spans = field(default_factory=Spans)
    """Spans without requests."""


@dataclass(slots=True)
class _Bar:
    """The progress bar of one `generate` call."""

    total: int = 0
    done: int = 0
    elapsed_s: int = 0
    tokens: float = 0.0


@dataclass(slots=True)
class _Reader:
    target: ImportTarget
    options: ImportOptions
    path: Path
    clock: LogClock | None
    engines: dict[str, _Engine] = field(default_factory=dict[str, _Engine])
    bars: dict[str, _Bar] = field(default_factory=dict[str, _Bar])
    settings: dict[str, int] = field(default_factory=dict[str, int])
    printing: str | None = None
    """The actor whose last line was empty; its bar may follow on a line without its prefix."""

    def take(self, line: ConsoleLine) -> None:
        """Read one line."""
        if line.actor and not line.text.strip():
            self.printing = line.actor
        elif "Avg prompt throughput" in line.text and self.clock:
            if found := _STATS.search(line.text):
                self._take_stats(self._engine(line.actor, found), found, self.clock, line.text)
        elif "Processed prompts" in line.text and self.clock is None:
            if found := _bar(line.text):
                self._take_bar(line.actor or self.printing, found)
        elif len(self.settings) < len(_SETTINGS):
            for name, pattern in _SETTINGS.items():
                if name not in self.settings and (found := pattern.search(line.text)):
                    self.settings[name] = whole(found[1].replace(",", ""))

    def _name(self, actor: str | None) -> str:
        if actor is None or _OWN_PROCESSES.match(actor):
            return self.path.stem
        return process_of(actor)

    def _engine(self, actor: str | None, found: re.Match[str]) -> _Engine:
        rank = whole(found["engine"] or 0)
        name = safe_worker_id(self._name(actor) + (f"-{rank}" if rank else ""))
        engine = self.engines.setdefault(name, _Engine(name))
        engine.count = whole(found["engines"] or 1, MOST_GPUS)
        return engine

    def _take_stats(self, engine: _Engine, found: re.Match[str], clock: LogClock, text: str) -> None:
        time_ns = clock.time_ns(found["ts"])
        if time_ns is None:
            return
        kv = _KV.search(text)
        stats = _Stats(
            time_ns,
            amount(found["prompt"]),
            amount(found["output"]),
            whole(found["running"]),
            whole(found["waiting"]),
            amount(kv[1]) / 100 if kv else None,
        )
        before, engine.last = engine.last, stats
        since_ns = engine.window_ns if before is None else stats.time_ns - before.time_ns
        if since_ns <= 0:
            return
        is_after_idle = before is not None and before.is_idle
        window_ns = min(since_ns, engine.window_ns + (0 if is_after_idle else _SECOND_NS))
        self.target.extend_worker(engine.worker_id, stats.time_ns - window_ns, stats.time_ns)
        if before is not None and is_after_idle:
            # vLLM prints nothing while nothing runs.
            engine.idle.add(before.time_ns, stats.time_ns - window_ns)
        if stats.is_idle:
            engine.idle.add(stats.time_ns - window_ns, stats.time_ns)
        elif stats.output_per_s or stats.prompt_per_s:
            self._add_window(engine, before, stats, window_ns)

    def _add_window(self, engine: _Engine, before: _Stats | None, stats: _Stats, window_ns: int) -> None:
        window_s = window_ns / _SECOND_NS
        first = stats.running if before is None else before.running
        running = (first + stats.running) / 2
        decode_tokens = stats.output_per_s * window_s
        is_timed = before is not None and self._is_full(engine, before, stats) and decode_tokens >= running > 0
        capacity = self.settings.get("kv_capacity_tokens")
        row = {
            "worker_id": engine.worker_id,
            "start_ns": stats.time_ns - window_ns,
            "end_ns": stats.time_ns,
            "forward_passes": round(decode_tokens / running) if is_timed else None,
            "busy_ns": window_ns if is_timed else None,
            "running": round(running),
            "waiting": stats.waiting,
            "decode_tokens": round(decode_tokens),
            "prefill_tokens": round(stats.prompt_per_s * window_s),
            "kv_used_tokens": None if stats.kv_ratio is None or capacity is None else round(stats.kv_ratio * capacity),
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

    def _take_bar(self, actor: str | None, found: re.Match[str]) -> None:
        """Add the work finished since the bar was last drawn; bars of one engine are laid end to end."""
        name = safe_worker_id(self._name(actor))
        engine = self.engines.setdefault(name, _Engine(name))
        bar = self.bars.setdefault(name, _Bar())
        done, total = whole(found["done"]), whole(found["total"])
        elapsed_s = _clock_s(found["elapsed"])
        if total != bar.total or done < bar.done or elapsed_s < bar.elapsed_s:
            self.bars[name] = bar = _Bar(total)
        tokens = amount(found["per_s"]) * elapsed_s
        start_ns = engine.end_ns or self.target.relative_origin_ns
        length_ns = (elapsed_s - bar.elapsed_s) * _SECOND_NS
        if length_ns > 0:
            cap = self.settings.get("max_running") or total
            row = {
                "worker_id": name,
                "start_ns": start_ns,
                "end_ns": start_ns + length_ns,
                "running": min(cap, total - bar.done),
                "waiting": max(0, total - bar.done - cap),
                "decode_tokens": max(0, round(tokens - bar.tokens)),
                "prefill_tokens": 0,
                "source": "log",
            }
            engine.rows += 1
            engine.end_ns = start_ns + length_ns
            self.target.extend_worker(name, start_ns, engine.end_ns)
            self.target.add("engine_steps", row)
            bar.elapsed_s, bar.tokens = elapsed_s, tokens
        bar.done = done

    def finish(self) -> None:
        """Add the engines."""
        for engine in self.engines.values():
            engine.idle.write_idle(engine.worker_id, self.target)
            gpus = self.options.gpus_per_engine or self.settings.get("gpus")
            self.target.add_engine(
                engine.worker_id,
                gpu_count=gpus and gpus * engine.count,
                kv_capacity_tokens=self.settings.get("kv_capacity_tokens"),
                max_running=self.settings.get("max_running"),
            )


def _recognise(source: ImportSource) -> str | None:
    lines = [line.text for line in clean_lines(source.text)]
    if windows := sum(1 for line in lines if _STATS.search(line)):
        return f"{windows} lines `Avg prompt throughput`"
    bars = sum(1 for line in lines if _bar(line))
    return f"{bars} lines `Processed prompts`" if bars else None


def _read(source: ImportSource, target: ImportTarget, options: ImportOptions, progress: Progress) -> str | None:
    """Add the engines of a log with their windows. Raises ImportFileError if there are none."""
    clock = open_clock(source.path, _STATS, target, options)
    if clock is None and target.extent() is not None:
        target.note(f"vLLM's progress bars in {source.path.name} have no timestamps, so they are not used.")
        return None
    reader = _Reader(target, options, source.path, clock)
    log = LogFile(source.path, progress)
    for line in log:
        try:
            reader.take(line)
        except RefusedNumberError:
            log.bad_lines += 1
    engines = reader.engines.values()
    if not any(engine.rows or engine.idle.spans() for engine in engines):
        raise ImportFileError.of(
            source.path,
            found="no timed `Avg prompt throughput` line and no `Processed prompts` progress bar",
            expected="the log of a vLLM engine that logs its statistics",
            next_step="Remove disable_log_stats (--disable-log-stats) and set VLLM_LOGGING_LEVEL to INFO.",
        )
    reader.finish()
    _say(target, log, reader)
    target.add_file("engine log", log.source())
    return "statistics" if reader.clock else "progress bars"


def _say(target: ImportTarget, log: LogFile, reader: _Reader) -> None:
    engines = reader.engines.values()
    if reader.clock is None:
        target.clock = "relative"
        rule = "all unfinished requests are running, and generate calls follow one another"
        target.say_origin("engine_steps", Certainty.INFERRED, rule)
        target.note(
            "vLLM's progress bars show remaining requests, not engine step times, so there is no step-time curve."
        )
    else:
        target.say_origin(
            "engine_steps", Certainty.INFERRED, "the batch size of a window is the mean of the sizes at its ends"
        )
        timed, rows = sum(engine.timed_rows for engine in engines), sum(engine.rows for engine in engines)
        target.note(
            f"{timed:,} of {rows:,} windows in vLLM's log give an engine step time: their batch size stayed constant."
        )
    if target.rows_of("activities"):
        target.say_origin(
            "activities", Certainty.INFERRED, "an engine is idle if it logs nothing after reporting zeros"
        )
    log.say_merged(target, {engine.worker_id: engine.rows for engine in engines})


def _bar(text: str) -> re.Match[str] | None:
    """Match the bar of a line, from the first place that names it."""
    at = text.find("Processed prompts: ")
    return _BAR.match(text, at) if at >= 0 else None


def _clock_s(text: str) -> int:
    """Convert a bar's elapsed time, such as 00:27 or 1:02:03, to seconds."""
    seconds = 0
    for part in text.split(":"):
        seconds = whole(60 * seconds + whole(part or 0))
    return seconds


VLLM_LOG: Final = Importer("vllm", "vLLM engine log", _recognise, _read, is_companion=True)
