"""Reads the lines of a log without ANSI colors and Ray's prefixes.

A log of any size is read in constant memory. The importers interpret the lines.
"""

import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlscope.errors import ImportFileError
from rlscope.importers.importer import ImportSource, Progress, open_regular, open_source
from rlscope.importers.rows import Tally, mapping, parsed_json
from rlscope.importers.target import ImportTarget

_CHUNK_BYTES: Final = 1 << 20
LONGEST_LINE_BYTES: Final = 1 << 20
"""Maximum length of a console line; longer ones are counted as bad and skipped."""
LONGEST_RECORD_BYTES: Final = 64 << 20
"""Maximum length of a JSON record, which may contain all tokens of a sample."""

_ANSI: Final = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\))")
"""Colors and links of a terminal."""
_COLOR: Final = re.compile(r"(?:\^\[|#033)?\[\d{0,3}(?:;\d{1,3}){0,5}m")
"""Colors without the escape character, which browsers leave out, and `cat -v` and CloudWatch spell."""
_COLLECTOR: Final = re.compile(
    r"(?:\[pod/[^\]\s]{1,200}\] |[\w.-]{1,100}-\d{1,4} +\| |[\w./-]{1,200}\.(?:log|out|txt):(?:\d+:)?|\d{1,5}: "
    r"|\[[a-z]{1,40}\d{1,5}\]: ?|\[\d{1,5},\d{1,5}\]<std(?:out|err)>: ?|> | {0,6}\d{1,9}\t"
    r"|\d{1,9}:(?=[^\d\s]))+"
)
"""Prefixes of kubectl, docker compose, grep, srun, torchrun, mpirun and `cat -n`, and of a quotation."""
_SOURCE: Final = re.compile(
    r"(?:(?:localhost|(?=[\w.]{0,99}[\d-])[a-z][\w.-]{0,99}|\d{1,3}(?:\.\d{1,3}){3}): (?!\s*-?\d)"
    r"|[a-z\d]+(?:-[a-z\d]+)+ [a-z\d]+(?:-[a-z\d]+)* "
    r"|[A-Z]{4,9}\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\s+[\w-]+\t?)(?! ?\d+%)"
)
"""Prefixes of pdsh, stern and `gcloud ai`, which look like words of a line unless almost all lines have one."""
_FROM_SOURCES: Final = 0.9
"""Share of the lines in the head of a log that have such a prefix if a collector has put it there."""
_RANK: Final = re.compile(r"\d{1,5}: |\[[a-z]{1,40}\d{1,5}\]: ?|\[\d{1,5},\d{1,5}\]<std(?:out|err)>: ?")
"""Prefix of a launcher that prints the lines of all ranks, or the number of a step."""
_FEWEST_TURNS: Final = 3
"""Times that the number before a line falls if it is that of a rank. That of a step falls where a run is resumed."""
_LINE_NUMBER: Final = re.compile(r":\d+:|^\d+:$| {0,6}\d{1,9}\t|> |: ?$")
"""The part of such a prefix that says nothing about where the line comes from."""
_SENT: Final = re.compile(r'\{.*"(?:log|message|msg|line|textPayload|@message)": ?"')
"""A line in a file of docker's or of a log service, which has each line as a text in a JSON object."""
_TEXTS: Final = ("log", "message", "msg", "line", "textPayload", "@message")
_COLLECTED: Final = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?\]|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)[ \t]"
    r"(?:std(?:out|err) [FP] |[\w.-]{1,100} [\w./@-]{1,100}\[\d{1,9}\]: (?:startup-script: )?)?"
)
"""Time at which a container, `ts` or journald printed a line. It stays in the line, because some engines state no
other."""
TIMED: Final = "timed "
"""Stands for that time in the printer of a line without it."""
_PRINTER: Final = re.compile(r"\s*(?:\([A-Za-z_][^()]{0,200}\)\s?)+")
"""Names of the processes that printed a line, as Ray and some launchers put them before it."""
_ACTOR: Final = re.compile(r"\(([\w.:\[\]=-]+ pid=\d+(?:, ip=[\w.:]+)?)\)")
_BEGINS: Final = re.compile(
    r"\s*(?:\[?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|[A-Z]+ \d\d-\d\d |step:\d+ -|[|\u2500-\u257f]|.{0,300}\d%\|)"
)
"""Beginning of a line that is no part of the line before, such as the frame of a table, and a progress bar."""
_FEWEST_PARTS: Final = 3
"""Parts of wrapped lines from which a terminal has wrapped a log, if half of the lines without a beginning are some."""
_FEWEST_COLUMNS: Final = 60
_TRIMMED: Final = 8
"""Most spaces that are missing at the end of a part."""
_ALIKE: Final = 3
"""Characters at their beginning in which two lines of the same kind agree."""
_ENDS_IN_NUMBER: Final = re.compile(r"\d\.\d+(?:m?s|%)?$")
"""End of a line of a fixed width, which no word goes on: "4.00sEpoch" is none."""
_REPEATED: Final = re.compile(r"\[repeated (\d{1,9})x across cluster\]")


class ConsoleLine(NamedTuple):
    """A console line, without ANSI colors and without the names of the processes that printed it."""

    text: str
    printer: str = ""
    """The names as they stood before the line; empty if there are none."""
    merged: int = 0
    """Number of lines of other actors that Ray's driver merged into this one and dropped."""
    collected: str = ""
    """Prefix of a log collector, or a part of a line that looks like one."""

    @property
    def actor(self) -> str | None:
        """The Ray actor that printed it, such as "VllmGenerationWorker pid=588923, ip=10.0.0.1"; None if not stated."""
        found = _ACTOR.search(self.printer)
        return found and found[1]


class LogFile:
    """A file of lines that counts the lines read and the bad ones."""

    def __init__(self, path: Path, tally: Tally | None = None, longest_bytes: int = LONGEST_LINE_BYTES) -> None:
        """Start at the beginning. Lines over the limit are bad. tally: where to count, if not in one of its own."""
        self.path = path
        self.tally = tally or Tally()
        self.merged_lines = 0
        """Number of lines that Ray's driver merged into others; their contents are lost."""
        self._longest_bytes = longest_bytes

    def __iter__(self) -> Iterator[ConsoleLine]:
        head = open_source(self.path).text
        has_sources = _has_sources(head)
        lines = (clean(raw.decode("utf-8", errors="replace"), has_sources) for raw in self.raw_lines())
        for line in _joined(lines, _columns(head)):
            self.merged_lines += line.merged
            yield line

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of a file with one per line; any other line is counted as bad."""
        for raw in self.raw_lines():
            if not raw.strip():
                continue
            record = parsed_json(raw)
            if isinstance(record, dict):
                yield mapping(record)
            else:
                self.tally.bad_lines += 1

    def raw_lines(self) -> Iterator[bytes]:
        """Yield the lines as bytes; carriage returns also end lines. Raises ImportFileError if reading fails."""
        try:
            with open_regular(self.path) as file:
                file.seek(len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0)
                for line in split_lines(self._chunks(file), self._longest_bytes):
                    self.tally.lines += 1
                    if line is None:
                        self.tally.bad_lines += 1
                    else:
                        yield line
        except OSError as error:
            raise ImportFileError.of(
                self.path,
                found=str(error),
                expected="a file that can be read",
                next_step="Check the path and permissions.",
            ) from error

    def _chunks(self, file: BufferedReader) -> Iterator[bytes]:
        while chunk := file.read(_CHUNK_BYTES):
            self.tally.count(len(chunk))
            yield chunk

    def say_merged(self, target: ImportTarget, rows: Mapping[str, int]) -> None:
        """Report that Ray's driver left out lines, if it did. rows: number of rows by worker that may lack some."""
        if not self.merged_lines:
            return
        for worker_id, count in rows.items():
            target.say_coverage(worker_id, count / (count + self.merged_lines))
        target.note(
            f"Ray merged {self.merged_lines:,} lines into others in {self.path.name}. Set RAY_DEDUP_LOGS=0, or pass"
            " the workers' own logs."
        )


class FirstRank:
    """Tells which metrics are of the rank that printed them first: where all ranks print, each says the same."""

    def __init__(self, path: Path) -> None:
        """Look whether the head of a log has the lines of several ranks, which take turns."""
        ranks = filter(_RANK.fullmatch, (line.collected for line in _head_lines(open_source(path).text)))
        numbers = [[int(part) for part in re.findall(r"\d+", rank)] for rank in ranks]
        self._has_several = sum(later < before for before, later in pairwise(numbers)) >= _FEWEST_TURNS
        self._owners: dict[str, str] = {}

    def prints(self, line: ConsoleLine, name: str) -> bool:
        """Return whether a line is of the first rank that printed a metric, which it may be itself, or of none."""
        rank = line.collected if self._has_several and _RANK.fullmatch(line.collected) else ""
        return not rank or self._owners.setdefault(name, rank) == rank


def records_of(path: Path, target: ImportTarget, progress: Progress) -> Iterator[tuple[LogFile, dict[str, Any]]]:
    """Yield the JSON objects of a file with one per line, each with the file, and then add the file to the target."""
    file = LogFile(path, Tally(progress), LONGEST_RECORD_BYTES)
    for record in file.records():
        yield file, record
    target.add_file("jsonl", file.tally.source_file(path))


def split_lines(chunks: Iterable[bytes], longest_bytes: int) -> Iterator[bytes | None]:
    r"""Yield the non-empty lines, ended by \n or \r; None for each line over the limit, to bound memory."""
    parts, size = list[bytes](), 0
    for chunk in chunks:
        *whole, last = chunk.replace(b"\r", b"\n").split(b"\n")
        for piece in whole:
            if size or piece:
                yield b"".join((*parts, piece)) if size + len(piece) <= longest_bytes else None
            parts, size = [], 0
        size += len(last)
        if size > longest_bytes:
            parts = []
        elif last:
            parts.append(last)
    if size:
        yield b"".join(parts) if size <= longest_bytes else None


def clean(text: str, has_sources: bool = False) -> ConsoleLine:
    """Return a line without ANSI colors, the prefix of a log collector, its printers and Ray's merge suffix.

    has_sources: whether a collector has put the name of a host or a container before almost all lines of the log.
    """
    if text.startswith('{"'):
        text = _sent(text)
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "[0m" in text:
        text = _COLOR.sub("", text)
    collected = printer = ""
    if has_sources and (found := _SOURCE.match(text)):
        collected, text = found[0], text[found.end() :]
    if not text.startswith("(") and (found := _COLLECTOR.match(text)):
        collected, text = collected + found[0], text[found.end() :]
    if text.lstrip().startswith("(") and (prefix := _PRINTER.match(text)):
        printer, text = prefix[0], text[prefix.end() :]
    suffix = _REPEATED.search(text) if "[repeated " in text else None
    if suffix is None:
        return ConsoleLine(text, printer, 0, collected)
    # "repeated 3x" stands for this line and two others.
    return ConsoleLine(text[: suffix.start()].rstrip(), printer, max(0, int(suffix[1]) - 1), collected)


def _sent(text: str) -> str:
    """Return the line in a JSON object; the text itself if the object has numbers, which may be metrics."""
    document = mapping(parsed_json(text)) if _SENT.match(text) else {}
    numbers = sum(isinstance(value, int | float) for value in document.values())
    return next((str(document[name]) for name in _TEXTS if name in document and numbers <= 1), text)


def is_of_service(head: bytes) -> bool:
    """Return whether the first line of a file is one that a log service has put into a JSON object."""
    first = head.split(b"\n", 1)[0].decode("utf-8", errors="replace")
    return _sent(first) != first


def without_time(line: ConsoleLine) -> ConsoleLine:
    """Return a line without the time that a log collector has put before it."""
    collected = _COLLECTED.match(line.text)
    if collected is None:
        return line
    rest = clean(line.text[collected.end() :])
    return rest._replace(printer=TIMED + rest.printer)


@lru_cache(maxsize=2)
def _head_lines(text: str) -> tuple[ConsoleLine, ...]:
    has_sources = _has_sources(text)
    return tuple(clean(line, has_sources) for line in _split(text))


def _split(text: str) -> list[str]:
    return [line for line in re.split(r"[\r\n]+", text) if line]


@lru_cache(maxsize=2)
def _has_sources(text: str) -> bool:
    """Return whether almost all lines in the head of a log have the name of the host or container that they are of."""
    lines = _split(_ANSI.sub("", text))
    return sum(map(bool, map(_SOURCE.match, lines))) > _FROM_SOURCES * len(lines)


def clean_lines(text: str) -> Iterator[ConsoleLine]:
    """Yield the lines of the head of a file, which every importer looks at."""
    return _joined(_head_lines(text), _columns(text))


def prints(pattern: re.Pattern[str], source: ImportSource) -> bool:
    """Return whether a line in the head of a file matches."""
    return any(pattern.search(line.text) for line in clean_lines(source.text))


@lru_cache(maxsize=2)
def _columns(text: str) -> int:
    """Return the columns of the terminal that wrapped the lines of the head of a file; 0 if none did."""
    lines = [line for line in _head_lines(text) if line.text]
    columns = max(map(_width, lines), default=0)
    parts = [_width(before) == columns for before, line in pairwise(lines) if _may_go_on(before, line)]
    return columns if columns >= _FEWEST_COLUMNS and sum(parts) >= max(_FEWEST_PARTS, len(parts) / 2) else 0


def _width(line: ConsoleLine) -> int:
    return len(line.printer) + len(line.text)


def _may_go_on(before: ConsoleLine, line: ConsoleLine) -> bool:
    """Return whether a line may be the rest of the one before: nothing shows that it begins, nor are both alike."""
    if line.text[:1].isupper() and _ENDS_IN_NUMBER.search(before.text):
        return False
    return not (line.printer or _BEGINS.match(line.text) or line.text[:_ALIKE] == before.text[:_ALIKE])


def _joined(lines: Iterable[ConsoleLine], columns: int) -> Iterator[ConsoleLine]:
    """Yield the lines without spaces at their end, with those joined that a terminal of this many columns wrapped."""
    held: list[ConsoleLine] = []
    for line in lines:
        missing = columns - _width(held[-1]) if columns and held else -1
        if held and not (0 <= missing <= _TRIMMED and _may_go_on(held[-1], line)):
            yield _line_of(held, columns)
            held = []
        held.append(line)
    if held:
        yield _line_of(held, columns)


def _line_of(parts: Sequence[ConsoleLine], columns: int) -> ConsoleLine:
    """Return the line that has these parts."""
    first = parts[0]
    if len(parts) == 1:
        return first if first.text[-1:] > " " else first._replace(text=first.text.rstrip())
    rest = (each.text if first.collected else each.collected + each.text for each in parts[1:])
    text = first.text.ljust(columns - len(first.printer)) + "".join(each.ljust(columns) for each in rest)
    return first._replace(text=text.rstrip(), merged=sum(each.merged for each in parts))


def lines_from_the_end(path: Path) -> Iterator[ConsoleLine]:
    """Yield the lines of a log in reverse, reading no more of it than is asked for."""
    end, head = path.stat().st_size, open_source(path).text
    columns, has_sources = _columns(head), _has_sources(head)
    rest = b""
    with path.open("rb") as file:
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            file.seek(start)
            lines = (file.read(end - start) + rest).splitlines()
            whole = lines if start == 0 else lines[1:]
            texts = (clean(raw.decode("utf-8", errors="replace"), has_sources) for raw in whole)
            yield from reversed([*_joined(texts, columns)])
            rest = lines[0][:LONGEST_LINE_BYTES] if lines else b""
            end = start


def process_of(line: ConsoleLine, name: str, own: re.Pattern[str] | None = None) -> str:
    """Return the name of the process that printed a line of an engine: that of Ray's actor, else that of the log.

    A process id is unique on its node: "VllmWorker-588923-10.0.0.1". A log of several containers, files or ranks has
    that of each line too. own: matches names that look like actors, but are the engine's own processes.
    """
    if line.actor and not (own and own.match(line.actor)):
        return line.actor.replace(" pid=", "-").replace(", ip=", "-")
    return f"{name}-{source}" if line.collected and (source := _LINE_NUMBER.sub("", line.collected).strip()) else name


def engine_name(path: Path, target: ImportTarget) -> str:
    """Return the name of the engine of a log: the file's own, with its folder if another log has the same name."""
    logs = {each.absolute() for each in (path, target.given, *target.options.engine_logs) if each.stem == path.stem}
    return path.stem if len(logs) == 1 else os.path.relpath(path, os.path.commonpath([each.parent for each in logs]))


def safe_worker_id(name: str) -> str:
    """Convert a name to a worker id, replacing invalid characters by dashes."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")[:128] or "worker"
