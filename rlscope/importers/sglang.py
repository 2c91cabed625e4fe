"""SGLang's log: one line per k decode passes and one per prefill, read as engine rows with batch sizes and pass times.

A decode line states the throughput since the previous decode line, measured by a separate clock. If the batch did not
change and no prefill came between, the number of tokens is known, and the throughput gives the time to the microsecond.
Otherwise the time is inferred.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rlscope.errors import ImportFileError
from rlscope.frameworks.table import PhaseKind
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import ConsoleLine, LogFile, engine_name, prints, process_of, safe_worker_id
from rlscope.importers.log_clock import LogClock, open_clock
from rlscope.importers.quantities import SECOND_NS, RefusedNumberError, amount, to_ns, whole
from rlscope.importers.rows import Tally
from rlscope.importers.target import ImportTarget
from rlscope.trace.imported import Certainty

STAMPED: Final = re.compile(
    r"(?:^|(?P<own>\[))(?P<ts>(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?Z?)"
    r"(?(own)(?P<ranks>(?: [A-Z_]+\d+)*)\]|\b.*?) (?P<kind>Decode|Prefill) batch(?: ?\[\d+\])?[.,] (?P<rest>.*)"
)
"""The brackets are the engine's own. If a log service removed them, its own timestamp starts the line."""
_RANK: Final = re.compile(r"([A-Z_]+)(\d+)")
_ARGUMENTS: Final[Mapping[str, re.Pattern[str]]] = {
    name: re.compile(rf"\b{name}=(\d{{1,12}})\b")
    for name in (
        "decode_log_interval",
        "tp_size",
        "pp_size",
        "dp_size",
        "max_total_num_tokens",
        "max_running_requests",
    )
}
_OWN_LIMIT: Final = "own_max_running"
"""The limit on running requests that one scheduler states; the limit in the arguments covers all ranks together."""
_SHARES_ATTENTION: Final = "enable_dp_attention"
"""Setting that makes data-parallel ranks parts of one tensor-parallel group instead of copies of it."""
_USUAL_PASSES: Final = 40
"""SGLang's default of --decode-log-interval."""
_PAGE_TOKENS: Final = 16
"""Size of the smallest page of a KV cache above one token. A cache that grows by pages does not count the passes."""
_SURVEYED_LINES: Final = 400_000
"""Number of lines at the start of the log from which pass times and passes per line are estimated."""
_KEPT_TIMES: Final = 64
"""Number of pass times kept for each batch size to take their median."""
_LONGEST_PREFILLS: Final = 5
"""Time outside the decode passes counts as idle if it exceeds this many median prefills."""
_SLOWEST_RATIO: Final = 3
"""A gap without a prefill that exceeds the time of its passes by this factor contains a pause."""
_STRETCH_ROWS: Final = 10_000
"""Maximum number of lines held before they are placed, so that memory does not grow with the log."""
_FINEST_NS: Final = 50_000_000
"""Assumed resolution of timestamps: lines are printed a little after their passes, so finer digits are not trusted."""


class _Entry(NamedTuple):
    """One line of an engine."""

    engine: str
    time_ns: int
    resolution_ns: int
    is_decode: bool
    running: int
    waiting: int
    kv_tokens: int | None
    tokens_per_s: float | None
    new_tokens: int
    accepted_tokens: float | None
    """Tokens that a pass of speculative decoding accepts per request."""


class _Gap(NamedTuple):
    """The interval between two decode lines of an engine in a row, or from its first line to its first decode line."""

    before: _Entry
    after: _Entry
    prefills: int = 0
    prefill_tokens: int = 0
    resumed_ns: int | None = None
    """The last prefill in the gap that found no request running: before it, the engine had nothing to do."""

    @property
    def running(self) -> float:
        """Mean number of requests."""
        return (self.before.running + self.after.running) / 2

    @property
    def is_plain(self) -> bool:
        """Whether the gap has only decode passes of one batch."""
        return self.prefills == 0 and self.before.running == self.after.running

    @property
    def worked_s(self) -> float:
        """The longest time that the engine can have worked since it was idle; infinite if it was never idle."""
        if self.resumed_ns is None:
            return math.inf
        return (self.after.time_ns + self.after.resolution_ns - self.resumed_ns) / SECOND_NS

    @property
    def grown_tokens(self) -> int | None:
        """Growth of the KV cache in tokens."""
        if self.before.kv_tokens is None or self.after.kv_tokens is None:
            return None
        return self.after.kv_tokens - self.before.kv_tokens


@dataclass(slots=True)
class _Survey:
    """Facts about the whole log, from the engine's settings and the plain gaps at its start."""

    settings: dict[str, int] = field(default_factory=dict[str, int])
    passes: int = _USUAL_PASSES
    page_tokens: int = 1
    """Tokens of a page of the KV cache, if its use always is that of whole pages."""
    pass_s: dict[int, float] = field(default_factory=dict[int, float])
    """Median time of a decode pass, by batch size."""
    prefill_s: float | None = None
    """Median time of a prefill."""

    def pass_time_s(self, gap: _Gap) -> float | None:
        """Return the time of a pass at the known batch size that is nearest to that of a gap."""
        if not self.pass_s:
            return None
        return self.pass_s[min(self.pass_s, key=lambda known: (abs(known - gap.running), known))]

    def decode_tokens(self, gap: _Gap) -> float:
        """Return the tokens of a gap's decode passes."""
        return self.passes * gap.running * (gap.after.accepted_tokens or 1.0)

    def length_s(self, gap: _Gap) -> float | None:
        """Return the length of a gap, from the throughput that its last line states."""
        rate = gap.after.tokens_per_s
        return self.decode_tokens(gap) / rate if rate else None

    def is_recorded(self, gap: _Gap) -> bool:
        """Whether the growth of the KV cache shows that the tokens of a gap, and so its length, are exact."""
        grown = gap.grown_tokens
        if not gap.is_plain or gap.after.accepted_tokens or grown is None:
            return False
        return abs(grown - self.passes * gap.after.running) <= gap.after.running * self.page_tokens


class _Placed(NamedTuple):
    """The rows of a gap, whose end has a timestamp but no exact time."""

    gap: _Gap
    length_ns: int
    rows: list[tuple[int, dict[str, object]]]
    """Rows in order, up to the decode line, each with its length in ns."""


def read_engines(
    source: ImportSource, target: ImportTarget, progress: Progress, utc_offset_s: int | None = None
) -> None:
    """Add one sampler for each engine of the log, with its rows. Raises ImportFileError if there are none.

    utc_offset_s: that of its timestamps, if known.
    """
    if not target.claim(source.path, SGLANG_LOG.kind):
        return
    clock = open_clock(source.path, STAMPED, target, utc_offset_s)
    if clock is None:
        raise ImportFileError.of(
            source.path,
            found="no timed `Decode batch` or `Prefill batch` line",
            expected="the log of an SGLang engine at --log-level info",
            next_step="Set the engine's log level to info (AReaL and some other frameworks start it at warning).",
        )
    survey, log = _look_over(source.path, copy(clock)), LogFile(source.path, Tally(progress))
    lanes: dict[str, _Lane] = {}
    for entry, gap in _entries(log, clock, engine_name(source.path, target)):
        lane = lanes.setdefault(entry.engine, _Lane(entry.engine, target))
        target.extend_worker(entry.engine, entry.time_ns, entry.time_ns)
        if gap is not None and (placed := _placed(gap, survey)):
            lane.take(placed)
    for lane in lanes.values():
        lane.place()
        _add_engine(lane, target, survey.settings)
    _say(target, log, lanes.values())
    target.add_file("engine log", log.tally.source_file(source.path))


def _look_over(path: Path, clock: LogClock) -> _Survey:
    """Read the start of the log for its settings and pass times."""
    scratch, survey = LogFile(path), _Survey()
    gaps: list[_Gap] = []
    kept: Counter[tuple[int, bool]] = Counter()
    for _, gap in _entries(scratch, clock, "", survey.settings):
        if gap is not None and gap.before.is_decode:
            kind = (gap.after.running, gap.is_plain)
            kept[kind] += 1
            if kept[kind] <= _KEPT_TIMES:
                gaps.append(gap)
        if scratch.tally.lines > _SURVEYED_LINES:
            break
    plain = [gap for gap in gaps if gap.is_plain and gap.after.running and not gap.after.accepted_tokens]
    factor = math.gcd(*(gap.after.kv_tokens or 0 for gap in plain))
    factor &= -factor  # The largest power of two in it.
    survey.page_tokens = factor if factor >= _PAGE_TOKENS else 1
    votes = Counter(
        round(grown / gap.after.running)
        for gap in plain
        if survey.page_tokens == 1 and (grown := gap.grown_tokens) and grown >= gap.after.running
    )
    (usual, _count), *_ = votes.most_common(1) or [(_USUAL_PASSES, 0)]
    survey.passes = survey.settings.get("decode_log_interval") or usual
    _learn_times(survey, gaps)
    return survey


def _learn_times(survey: _Survey, gaps: list[_Gap]) -> None:
    times: dict[int, list[float]] = {}
    for gap in gaps:
        is_known = survey.is_recorded(gap) or (gap.is_plain and gap.after.accepted_tokens)
        if is_known and (length_s := survey.length_s(gap)):
            times.setdefault(gap.after.running, []).append(length_s / survey.passes)
    survey.pass_s = {running: median(seconds) for running, seconds in times.items()}
    beside = [
        (min(length_s, gap.worked_s) - survey.passes * pass_s) / gap.prefills
        for gap in gaps
        if gap.prefills and (length_s := survey.length_s(gap)) and (pass_s := survey.pass_time_s(gap)) is not None
    ]
    positive = [seconds for seconds in beside if seconds > 0]
    survey.prefill_s = median(positive) if positive else None


def _entries(
    log: LogFile, clock: LogClock, stem: str, settings: dict[str, int] | None = None
) -> Iterator[tuple[_Entry, _Gap | None]]:
    """Yield the lines of all engines, each with the gap that it ends: None for prefills and an engine's first line."""
    gaps: dict[str, _Gap] = {}
    """By engine, the gap since its last decode line; before the first one, since its first line."""
    for line in log:
        if settings is not None and ("_args" in line.text or "max_total_num_tokens=" in line.text):
            _take_settings(line.text, settings)
        found = STAMPED.search(line.text) if " batch" in line.text else None
        if found is None or not _is_first_rank(found["ranks"]):
            continue
        entry = _entry(line, found, clock, stem)
        if entry is None:
            log.tally.bad_lines += 1
            continue
        is_first = entry.engine not in gaps
        gap = gaps.setdefault(entry.engine, _Gap(entry, entry))
        if entry.is_decode:
            yield entry, None if is_first else gap._replace(after=entry)
            gaps[entry.engine] = _Gap(entry, entry)
        else:
            gaps[entry.engine] = gap._replace(
                prefills=gap.prefills + 1,
                prefill_tokens=gap.prefill_tokens + entry.new_tokens,
                resumed_ns=gap.resumed_ns if entry.running else entry.time_ns,
            )
            yield entry, None


def _take_settings(text: str, settings: dict[str, int]) -> None:
    is_own = "max_total_num_tokens=" in text
    for name, pattern in _ARGUMENTS.items():
        if found := pattern.search(text):
            settings.setdefault(_OWN_LIMIT if is_own and name == "max_running_requests" else name, int(found[1]))
    if f"{_SHARES_ATTENTION}=True" in text:
        settings[_SHARES_ATTENTION] = 1


def _is_first_rank(text: str | None) -> bool:
    """Return whether a line is not from a further rank of the same engine, which would repeat it."""
    ranks = dict(_RANK.findall(text or ""))
    return ("DP" in ranks or ranks.get("TP", "0") == "0") and ranks.get("PP", "0") == "0"


def _entry(line: ConsoleLine, found: re.Match[str], clock: LogClock, stem: str) -> _Entry | None:
    """Parse the numbers of a line; None if it lacks the batch size or has invalid numbers."""
    pairs = _pairs(found["rest"])
    ranks = dict(_RANK.findall(found["ranks"] or ""))
    # Some versions repeat the time with microseconds at the end of the line.
    stamp = pairs.get("timestamp") or found["ts"]
    time_ns = clock.time_ns(stamp)
    if time_ns is None:
        return None
    name = process_of(line, stem)
    try:
        tokens = pairs.get("#token") or pairs.get("#full token")
        rate, accepted = pairs.get("gen throughput (token/s)"), pairs.get("accept len")
        return _Entry(
            engine=safe_worker_id(f"{name}-dp{ranks['DP']}" if "DP" in ranks else name),
            time_ns=time_ns,
            resolution_ns=_FINEST_NS if re.search(r"[.,]\d{2}", stamp) else SECOND_NS,
            is_decode=found["kind"] == "Decode",
            running=whole(pairs["#running-req"]),
            waiting=whole(pairs.get("#queue-req", 0)),
            kv_tokens=whole(tokens) if tokens else None,
            tokens_per_s=amount(rate) if rate else None,
            new_tokens=whole(pairs.get("#new-token", 0)),
            accepted_tokens=amount(accepted) if accepted else None,
        )
    except (KeyError, RefusedNumberError):
        return None


def _pairs(text: str) -> dict[str, str]:
    """Return the first word of each value, by name: `#running-req: 4, token usage: 0.04`."""
    parts = (part.partition(": ") for part in text.split(","))
    return {name.strip(): value.split()[0] for name, _, value in parts if value.strip()}


def _placed(gap: _Gap, survey: _Survey) -> _Placed | None:
    """Return the rows of a gap; None if nothing was decoded."""
    if not gap.before.is_decode:
        return _first_prefills(gap, survey)
    length_s = survey.length_s(gap)
    if not length_s or not gap.running:
        return None
    pass_s = survey.pass_time_s(gap)
    worked_s = min(length_s, gap.worked_s)
    decode_s = min(length_s, survey.passes * pass_s) if pass_s else worked_s
    is_whole = gap.prefills == 0 and length_s <= _SLOWEST_RATIO * decode_s
    rows = [_decode(gap, survey, length_s if is_whole else decode_s, is_whole and survey.is_recorded(gap))]
    if gap.prefills and pass_s is not None:
        beside_s = max(0.0, worked_s - decode_s)
        usual_s = (survey.prefill_s or beside_s) * gap.prefills
        if prefill_ns := to_ns(beside_s if beside_s <= _LONGEST_PREFILLS * usual_s else usual_s):
            rows.insert(0, _prefill(gap, prefill_ns))
        else:
            rows[0][1]["prefill_tokens"] = gap.prefill_tokens
    return _Placed(gap, to_ns(length_s), rows)


def _first_prefills(gap: _Gap, survey: _Survey) -> _Placed:
    """Return the prefills before an engine's first decode line, whose passes may have begun before the log."""
    after, decode_ns = gap.after, to_ns(survey.passes * (survey.pass_time_s(gap) or 0.0))
    beside_ns = max(0, after.time_ns - gap.before.time_ns - decode_ns)
    usual_ns = to_ns((survey.prefill_s or 0.0) * gap.prefills) or beside_ns or after.resolution_ns
    length_ns = beside_ns if 0 < beside_ns <= _LONGEST_PREFILLS * usual_ns else usual_ns
    ended = gap._replace(after=after._replace(time_ns=after.time_ns - decode_ns))
    return _Placed(ended, length_ns, [_prefill(gap, length_ns)])


def _decode(gap: _Gap, survey: _Survey, length_s: float, is_recorded: bool) -> tuple[int, dict[str, object]]:
    kv = [tokens for tokens in (gap.before.kv_tokens, gap.after.kv_tokens) if tokens is not None]
    return to_ns(length_s), {
        "forward_passes": survey.passes,
        "busy_ns": to_ns(length_s) if is_recorded else None,
        "decode_tokens": round(survey.decode_tokens(gap)),
        # Without the time of a pass, this row covers the prefills of the gap too.
        "prefill_tokens": 0 if survey.pass_s else gap.prefill_tokens,
        # Use the mean of both lines: the cache grows by one token per pass and request.
        "kv_used_tokens": round(sum(kv) / len(kv)) if kv else None,
    }


def _prefill(gap: _Gap, length_ns: int) -> tuple[int, dict[str, object]]:
    return length_ns, {
        "forward_passes": gap.prefills,
        "busy_ns": None,
        "decode_tokens": 0,
        "prefill_tokens": gap.prefill_tokens,
        "kv_used_tokens": gap.before.kv_tokens,
    }


class _Lane:
    """Rows of one engine, laid end to end and shifted so that each ends within the second of its timestamp."""

    def __init__(self, engine: str, target: ImportTarget) -> None:
        self.engine = engine
        self.rows = 0
        self.recorded_rows = 0
        self.is_idle = False
        """Whether the engine ever had no request for some time."""
        self._target = target
        self._held: list[tuple[int, _Placed]] = []
        self._length_ns = 0
        self._least_ns, self._most_ns = 0, 0
        self._written_ns = 0

    def take(self, placed: _Placed) -> None:
        """Hold a gap. The gaps held before are written once no single shift fits both them and this one."""
        after, length_ns = placed.gap.after, self._length_ns + placed.length_ns
        least_ns = max(self._least_ns, after.time_ns - length_ns)
        most_ns = min(self._most_ns, after.time_ns + after.resolution_ns - length_ns)
        if not self._held or least_ns >= most_ns:
            self.place()
            length_ns, least_ns, most_ns = 0, after.time_ns, after.time_ns + after.resolution_ns
        self._held.append((length_ns, placed))
        self._length_ns, self._least_ns, self._most_ns = length_ns, least_ns, most_ns
        if len(self._held) >= _STRETCH_ROWS:
            self.place()

    def place(self) -> None:
        """Write the held rows."""
        shift_ns = (self._least_ns + self._most_ns) // 2
        for length_ns, placed in self._held:
            end_ns = shift_ns + length_ns
            start_ns = end_ns - sum(row_ns for row_ns, _ in placed.rows)
            if placed.gap.resumed_ns is not None and self._written_ns:
                self._target.add_phase(self.engine, PhaseKind.WAIT_REQUESTS, self._written_ns, start_ns)
                self.is_idle = True
            shared = {"running": round(placed.gap.running), "waiting": placed.gap.after.waiting}
            for row_ns, row in placed.rows:
                self._write(shared | row, start_ns, start_ns + row_ns)
                start_ns += row_ns
        self._held.clear()

    def _write(self, row: dict[str, object], start_ns: int, end_ns: int) -> None:
        started_ns = max(start_ns, self._written_ns)
        if end_ns <= started_ns:
            return
        if started_ns > start_ns:
            # It overlaps a row that is fixed by two timestamps, so the duration of its passes is unknown.
            row |= {"busy_ns": None}
        row |= {"worker_id": self.engine, "start_ns": started_ns, "end_ns": end_ns, "source": "log"}
        self.rows += 1
        self.recorded_rows += row["busy_ns"] is not None
        self._written_ns = end_ns
        self._target.extend_worker(self.engine, started_ns, end_ns)
        self._target.add("engine_steps", row)


def _add_engine(lane: _Lane, target: ImportTarget, settings: Mapping[str, int]) -> None:
    """Add an engine as a sampler. Data-parallel ranks, each an engine here, may share one server's GPUs and limits."""
    ranks = settings.get("dp_size", 1) if _SHARES_ATTENTION in settings else 1
    gpus, running = settings.get("tp_size"), settings.get("max_running_requests")
    target.add_engine(
        lane.engine,
        gpu_count=target.options.gpus_per_engine or (gpus and gpus * settings.get("pp_size", 1) // ranks),
        kv_capacity_tokens=settings.get("max_total_num_tokens"),
        max_running=settings.get(_OWN_LIMIT, None if running is None else running // ranks),
    )


def _say(target: ImportTarget, log: LogFile, lanes: Collection[_Lane]) -> None:
    """Report how certain the rows are, and which lines Ray's driver merged away."""
    rows = sum(lane.rows for lane in lanes)
    recorded = sum(lane.recorded_rows for lane in lanes)
    if rows and recorded == rows:
        target.say_origin("engine_steps", Certainty.RECORDED)
    elif rows:
        rule = "if the batch size changed or a prefill ran between two lines, the batch size's usual time is used"
        target.say_origin("engine_steps", Certainty.INFERRED, rule)
        target.note(f"{recorded:,} of {rows:,} engine rows have a recorded step time; the other times are inferred.")
    else:
        target.note(f"{log.path.name} has no two decode lines of an engine, so engine steps are unknown.")
    if any(lane.is_idle for lane in lanes):
        rule = "an engine is idle before a prefill that finds no running request"
        target.say_origin("activities", Certainty.INFERRED, rule)
    log.say_merged(target, {lane.engine: lane.rows for lane in lanes})


SGLANG_LOG: Final = Importer("sglang", "SGLang engine log", partial(prints, STAMPED), read_engines, is_companion=True)
