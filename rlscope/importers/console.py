r"""Console logs: `step:12 - name:1.5` lines, dictionaries and tables of metrics, and the config at the head.

The config is a dictionary printed over many lines, or settings on an echoed command line (`trainer.nnodes=2`).

Tables come from AReaL's StatsLogger, boxes of names and numbers below a line `Train step 12/100 done.`, and from
torchforge, lines `name: 1.5` below `=== [global_reduce] - METRICS STEP 12 ===`. The timestamps of these lines have no
time zone and are ignored.

Color codes (ANSI) and the prefixes that Ray puts before a worker's lines, such as `(TaskRunner pid=123)`, are removed.
A progress bar rewrites its line with `\r`, so `\r` ends a line here too.
"""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rlscope.frameworks import frameworks
from rlscope.frameworks.table import NO_LINE, Framework
from rlscope.importers.importer import ImportSource
from rlscope.importers.lines import TIMED, ConsoleLine, FirstRank, LogFile, clean_lines, is_of_service, without_time
from rlscope.importers.quantities import FINITE, is_in_ms, named_reals, real
from rlscope.importers.rows import Carrier, MetricRow, Tally, instant_ns, mapping, parsed_json, row_of

_STEP_LINE: Final = re.compile(r"(?<![\w/])step:(\d+) - (\S+:.+)")
"""Matches right after a progress bar too, because the bar ends without a space."""
_STEP: Final = r"step:\d+(?: -|$)"
"""The number of a step; the time of one has decimals, and may follow a line that was cut in `timing_s/step`."""
_OPENS: Final = re.compile(rf"(?<![\w/]){_STEP}")
_REST: Final = re.compile(rf"- \S+:|(?!{_STEP})(?:[\d.]\S*|\S*:\S+) - \S+:|[\d.]+$")
"""The rest of such a line that was wrapped before a metric, or cut inside a name or a number."""
_CUT_NAME: Final = re.compile(r" - [^\s:]+$")
"""End of such a line that was cut inside a name."""
_ENDS_NAME: Final = re.compile(rf"(?!{_STEP})[\w/.@-]*:\S+(?: - |$)")
_NUMBER: Final = rf"(?:{FINITE}|-?(?:nan|inf))"
_ENDS: Final = r"(?![\w.]|,\d)"
"""End of a number. One with a comma, for thousands or for decimals, cannot be read, and its first digits are no number.
"""
_SECONDS: Final = r"(?:ms|s|secs?|seconds?)\b"
"""Units of a time that is read."""
_OTHER_UNIT: Final = r"(?!:\d|\s?(?:[nu\xb5\u03bc]s|m|mins?|minutes?|h|hrs?|hours?)\b(?!\s?[:=]))"
"""Another unit, which must not follow a number of seconds, unless a colon shows that it is the next name."""
_VALUE: Final = re.compile(rf"(?:[\w.]+\()?({_NUMBER})\)?")
_OVERRIDE: Final = re.compile(r"(?<![^\s'])\+{0,2}([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)=(\d{1,9})(?![^\s\\'])")
"""A whole number set on the command line, such as `trainer.nnodes=2`."""
_YAML: Final = re.compile(r"([a-z]\w*): (\d{1,9}(?:\.\d{1,9})?)$")
"""A number at the top level of a config that is printed as YAML, as ROLL does."""
_CRASH: Final = "Error executing job with overrides: ["
"""Beginning of the line in which Hydra lists the settings of the command after a crash."""
_COMMAND: Final = re.compile(r"\bpython\S{0,200} |^\s*\+{0,2}[\w.]+=\S+\s*\\?$")
_PRINTED_VALUE: Final = re.compile(r"""(?!\[\d+[-:])\s*(?:['"\d{}\[\](),-]|True\b|False\b|None\b|$)""")
"""Start of a line inside a dictionary that is printed over several lines. A logger's timestamp in brackets is none."""
_STRAY: Final = re.compile(r"(?!.*(?:\[\]|\{\}|\(\)))[\s\[\](){},-]+")
"""A line that a dictionary has only where another writer split one of its lines: brackets come with the first item
behind them, or the last before them."""
_TABLES: Final = (
    (
        "StatsLogger INFO: ",
        re.compile(r"\bTrain step (\d+)/\d+ done\."),
        re.compile(rf"│\s*([^\s│]+)\s*│\s*({_NUMBER})\s*(?=│)"),
    ),
    (
        " - METRICS STEP ",
        re.compile(r"=== \[[^\]]{0,200}\] - METRICS STEP (\d+) ==="),
        re.compile(rf"^(?:\[\d+\])?\s*([\w.-]+/[\w./-]+): ({_NUMBER})$"),
    ),
)
"""Each kind of table: a text in the line above it, the step in that line, and the names and numbers in its lines."""
_BAR: Final = r".{0,300}\d+%\|[^{}]{0,300}\]\s*"
"""A progress bar."""
Leads = tuple[re.Pattern[str], ...]
"""Patterns of the text before a printed dictionary of metrics, with the step if the text names it."""


def _leads_of(tables: Iterable[Framework]) -> Leads:
    """Return the patterns before the dictionaries of these frameworks, and before any dictionary."""
    stated = [each.console.lead.pattern for each in tables if each.console.lead is not NO_LINE]
    return tuple(re.compile(rf"(?:{lead})(?=\{{)") for lead in (*stated, _BAR, r"\s*"))


_LEADS: Final = _leads_of(frameworks())
_PAIR_STEP: Final = re.compile(r"(?i)(?<![\w/.])(?:global[ _])?step['\"]?\s*[:=#│|]?\s*(\d{1,9})(?![\w.%])")
_DATED: Final = re.compile(
    r".{0,40}?\b(?P<ts>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_ANY_NAME: Final = r"(?<![\w/.])([A-Za-z_][\w/.-]{0,80}"
_ANY_PAIR: Final = re.compile(
    rf"{_ANY_NAME}(?: [\w/.-]{{1,40}})?)['\"]?\s{{0,30}}[:=]\s{{0,30}}{_NUMBER}(\s?{_SECONDS})?{_ENDS}"
)
_SPACED_PAIR: Final = re.compile(rf"(?!\b(?:took|in|after|for) ){_ANY_NAME}) {_NUMBER}(\s?{_SECONDS})")
_DURATION: Final = re.compile(
    r"(?i)^(?!.*(?:per_|/sec$))"
    r".*(?:(?:^|[ /_.-])(?:time|timing|secs?|seconds|duration|elapsed|latency)(?:$|[ /_.-])|_m?s$)"
)
_LEAST_LINES: Final = 3
_LONGEST_STEP: Final = 64 * 1024
_LONGEST_NAME: Final = 200
_MOST_PARTS: Final = 100
"""Lines in which a wrapped dictionary is looked for."""
_LONGEST_CONFIG: Final = 256 * 1024
_MOST_PARSED: Final = 8 * _LONGEST_CONFIG
"""Characters that are parsed in search of the config: many lines look like its last one, or like stray ones."""
_MOST_STARTS, _MOST_STRAYS = 4, 4
"""Limits of the search for the config: dictionaries tried, and stray lines inside one."""
_UNMATCHED: Final = re.compile(r"does not match opening parenthesis '[\[(]' on line (\d+)$")
"""The message of the parser about a stray opening bracket, which it finds where the dictionary closes."""
_MOST_ZEROS: Final = 0.2
"""Share of zero bytes from which a file is no text. A file system that lost a write leaves pages of them in a log."""
UNREAD_CONFIG: Final = "The config printed over several lines of the log cannot be parsed, so its settings are unknown"
"""The note about a config that began but could not be read."""


def _rows(path: Path, tally: Tally, leads: Leads = _LEADS) -> Iterator[MetricRow]:
    config, table, is_head = PrintedConfig(tally), _PrintedTable(), True
    first = FirstRank(path)
    lines = map(without_time, _unwrapped(LogFile(path, tally)))
    for line in _closed(lines, leads[:-1]):
        text = line.text
        found = _STEP_LINE.search(text) if "step:" in text else None
        if found is not None:
            values = dict(_pairs(found[2]))
            tally.bad_lines += not values
            is_head = False
            if values:
                yield MetricRow(None, real(found[1]), values)
            continue
        if (finished := table.take(text)) is not None:
            is_head = False
            yield from finished
            continue
        config.read(line)
        if text.startswith(_CRASH) or (is_head and "=" in text and _COMMAND.search(text)):
            tally.overrides.update((name, int(value)) for name, value in _OVERRIDE.findall(text))
        elif is_head and (stated := _YAML.match(text)):
            tally.overrides.setdefault(stated[1], parsed_json(stated[2]))
        if text.endswith("}") and ":" in text and (row := _printed_row(text, leads)):
            values = {name: value for name, value in row.values.items() if first.prints(line, name)}
            if values:
                yield replace(row, values=values)
    yield from table.last()


def _unwrapped(lines: Iterable[ConsoleLine]) -> Iterator[ConsoleLine]:
    """Yield the lines, with the parts of a wrapped `step:12 - name:1.5` line joined."""
    held: ConsoleLine | None = None
    for line in lines:
        if held is not None and line.printer in ("", held.printer) and len(held.text) < _LONGEST_STEP:
            start, rest = held.text, line.text.lstrip()
            if _REST.match(rest) or (_CUT_NAME.search(start[-_LONGEST_NAME:]) and _ENDS_NAME.match(rest)):
                gap = " " if start.endswith(" -") or rest.startswith("- ") else ""
                held = held._replace(text=start + gap + rest)
                continue
        if held is not None:
            yield held
        held = line if "step:" in line.text and _OPENS.search(line.text) else None
        if held is None:
            yield line
    if held is not None:
        yield held


def _closed(lines: Iterable[ConsoleLine], leads: Leads) -> Iterator[ConsoleLine]:
    """Yield the lines, with the parts of a wrapped dictionary joined that stands behind a known text."""
    held: list[ConsoleLine] = []
    for line in lines:
        text = line.text
        is_open = not text.endswith("}") and text.count("{") > text.count("}")
        begins = (is_open or (held and "{" in text)) and any(lead.match(text) for lead in leads)
        if held and (begins or len(held) == _MOST_PARTS or line.printer not in ("", held[0].printer)):
            yield from held
            held = []
        if held or (begins and is_open):
            held.append(line)
        else:
            yield line
        if held and text.endswith("}"):
            yield held[0]._replace(text="".join(part.text for part in held))
            held = []
    yield from held


def _pairs(text: str) -> Iterator[tuple[str, float]]:
    """Yield the names and numbers of `a:1.5 - b:np.float64(2)`; parts in any other form are skipped."""
    for part in text.split(" - "):
        before, _, written = part.rpartition(":")
        value = _VALUE.fullmatch(written)
        name = re.split(r"[\s:]", before)[-1]
        if value and name:
            yield name, real(value[1])


def _printed_row(text: str, leads: Leads) -> MetricRow | None:
    """Return the row of a dictionary that stands alone on its line or after a logger's prefix."""
    lead = next((found for each in leads if (found := each.match(text))), None)
    if lead is None:
        return None
    printed = text[lead.end() :]
    row = row_of(mapping(parsed_json(printed)) or named_reals(printed))
    step = lead.groupdict().get("step")
    return replace(row, step=real(step)) if row is not None and step else row


class _PrintedTable:
    """Collects the tables of a step, from the line that names it to the line that names the next step."""

    def __init__(self) -> None:
        self._step: float | None = None
        self._cells = _TABLES[0][-1]
        self._values: dict[str, float] = {}

    def take(self, text: str) -> tuple[MetricRow, ...] | None:
        """Read a line of a table, and return the step that it completed, if any; None for any other line."""
        if self._step is not None and (held := self._cells.findall(text)):
            self._values.update((name, real(value)) for name, value in held)
            return ()
        for above, step, cells in _TABLES:
            if above in text and (found := step.search(text)):
                finished = self.last()
                self._step, self._cells, self._values = real(found[1]), cells, {}
                return finished
        return None

    def last(self) -> tuple[MetricRow, ...]:
        """Return the step whose tables are being read; empty if they have held no number."""
        return (MetricRow(None, self._step, self._values),) if self._values else ()


class PrintedConfig:
    """Puts into a tally the first complete dictionary that is printed over several lines, as the config of a run is.

    A later one with the same names takes its place: it is of another run in the file, whose steps count too.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._printer = self._first = ""
        self._lines: list[str] = []
        self._size = 0
        self._parsed = 0
        self._starts = 0

    def read(self, line: ConsoleLine) -> None:
        """Read one line."""
        if self._tally.config and not self._lines and self._first not in line.text:
            return
        line = without_time(line)
        if not self._lines:
            text = line.text.lstrip()
            if text.startswith(("{'", '{"')) and not text.endswith("}") and self._starts < _MOST_STARTS:
                self._printer, self._lines, self._size = line.printer, [text], len(text)
                self._starts += not self._tally.config
                self._tally.is_config_unread = not self._tally.config
        elif line.printer in (self._printer, self._printer.removeprefix(TIMED)) and _PRINTED_VALUE.match(line.text):
            self._add(line.text)

    def _add(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text)
        found = self._without_strays() if text.endswith("}}") and self._parsed <= _MOST_PARSED else None
        known = self._tally.config
        if found and (not known or known.keys() == found.keys()):
            self._tally.earlier += [known] if known else []
            self._tally.config, self._first = found, self._lines[0].partition(":")[0]
            self._tally.is_config_unread = False
        if found or self._size > _LONGEST_CONFIG:
            self._lines = []

    def _without_strays(self) -> dict[str, Any] | None:
        """Return the dictionary on the lines, ignoring stray lines from other writers; None if they hold none."""
        plain = [line for line in self._lines if not _STRAY.fullmatch(line)]
        found = self._parse(self._lines)
        return found if found is not None or len(plain) == len(self._lines) else self._parse(plain)

    def _parse(self, lines: list[str]) -> dict[str, Any] | None:
        """Return the dictionary on these lines, without a few that do not fit; None if they hold none."""
        kept = [*lines]
        for _ in range(_MOST_STRAYS + 1):
            self._parsed += self._size
            try:
                value = ast.literal_eval("\n".join(kept))
            except SyntaxError as error:
                opened = _UNMATCHED.search(error.msg)
                stray = int(opened[1] if opened else error.lineno or 0) - 1
                if not 0 < stray < len(kept) - 1:
                    return None
                del kept[stray]
            except (ValueError, MemoryError, RecursionError):
                return None
            else:
                return value if isinstance(value, dict) else None
        return None


def console_of(framework: Framework) -> Carrier:
    """Return the carrier of a console whose printed dictionaries follow the text that a user's table states."""
    if framework.console.lead is NO_LINE:
        return CONSOLE
    return replace(CONSOLE, rows=partial(_rows, leads=_leads_of((framework, *frameworks()))))


def pairs_of(names: Collection[str], prefixes: Collection[str] = ()) -> Carrier:
    """Return the carrier of a console that prints these metrics as `name: 1.5`, `name=1.5` or `name 1.5s`.

    A value in another unit than seconds or milliseconds is not read. A row may have one line or several. It was written
    at the time of the last of them, if they state one.
    prefixes: those of further metrics. A row ends where a name comes again. Its step is the last `step 12`, `step: 12`
    or `step=12` before that, or the next one if the log begins with values and names the step on a line without any.
    """
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    others = "".join(rf"|{re.escape(prefix)}[\w/@.-]*" for prefix in prefixes)
    between = rf"(?:\s*[:=]\s*|\s*[│|]\s*|\s+(?=\S+\s*$|{_NUMBER}\s?{_SECONDS}))"
    number = rf"(?:['\"`]|\*\*|[\w.]+\()?({_NUMBER})(?:\s*({_SECONDS}))?{_OTHER_UNIT}{_ENDS}"
    pair = re.compile(rf"(?<![\w/.])['\"]?({known}{others})['\"`*]*{between}{number}")
    return replace(CONSOLE, rows=partial(_pair_rows, pair))


def _pair_rows(pair: re.Pattern[str], path: Path, tally: Tally) -> Iterator[MetricRow]:
    step: float | None = None
    values: dict[str, float] = {}
    first = FirstRank(path)
    is_after: bool | None = None
    time_ns: int | None = None
    for line in LogFile(path, tally):
        text = line.text
        stated = _PAIR_STEP.search(text)
        found = [
            (name, _in_unit_of(name, real(value), unit))
            for name, value, unit in pair.findall(text)
            if first.prints(line, name)
        ]
        if stated and is_after is None:
            is_after = bool(values) and not found
        if stated and is_after and not found:
            if values:
                yield MetricRow(time_ns, real(stated[1]), values)
            values = {}
            continue
        if values and ((stated and real(stated[1]) != step) or any(name in values for name, _ in found)):
            yield MetricRow(time_ns, step, values)
            step, values = (None if stated is None else step), {}
        step = real(stated[1]) if stated else step
        values.update(found)
        time_ns = _printed_ns(text, tally) if found else time_ns
    if values:
        yield MetricRow(time_ns, step, values)


def _printed_ns(text: str, tally: Tally) -> int | None:
    """Return the time that a logger has put before a line, with its date; None if there is none."""
    found = _DATED.match(text)
    if found is None:
        return None
    tally.is_local |= not found["zone"]
    return instant_ns(found["ts"].replace(",", ".") + (found["zone"] or ""))


def _in_unit_of(name: str, value: float, printed: str) -> float:
    """Convert a time from the unit that is printed behind it, if any, to that of its name."""
    if not printed or (printed == "ms") == is_in_ms(name):
        return value
    return value / 1e3 if printed == "ms" else value * 1e3


def durations_in(text: str) -> list[str]:
    """Return the names that look like durations and that at least three lines print.

    They are printed as `name: 1.5s` or `name=1.5`, or, on a line that states a step, as `name 1.5s`.
    """
    lines = Counter(found for line in clean_lines(text) for found in _printed_pairs(line.text))
    return sorted(
        {name for (name, unit), count in lines.items() if count >= _LEAST_LINES and (unit or is_duration(name))}
    )


def _printed_pairs(text: str) -> set[tuple[str, str]]:
    """Return the names on a line that have a number, with the unit of each, if any."""
    return {*_ANY_PAIR.findall(text), *(_SPACED_PAIR.findall(text) if _PAIR_STEP.search(text) else ())}


def is_duration(name: str) -> bool:
    """Return whether a metric is a duration by its name."""
    return _DURATION.search(name) is not None


def _fits(source: ImportSource) -> bool:
    zeros = source.head.count(0)
    is_text = bool(source.head) and zeros <= _MOST_ZEROS * len(source.head)
    is_other = source.path.suffix in (".csv", ".tsv", ".jsonl", ".json")
    return is_text and (not is_other or is_of_service(source.head))


CONSOLE: Final = Carrier("console", ("*.log", "*.out", "*.txt"), _fits, _rows)
