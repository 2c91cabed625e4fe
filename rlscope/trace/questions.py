"""Finds the SQL files and reads their headers. Runs nothing.

Each file is in the folder of its topic and has the unique name of its question. It holds one SELECT with this header:

    -- The question as a sentence?
    --
    -- in   table, table
    -- arg  name  TYPE  meaning with unit
    -- out  name  TYPE  meaning with unit
    -- grain: one row per ...
    -- partition: worker | sample | driver
    -- merge: concatenate | sum NAME, NAME; max NAME; ...

`partition` says how the rows can be divided into shares that each answer the question separately: by worker, or by
sample, so that a sample and its deliveries are in one share while the other tables are in every share. `driver` marks a
question that only the whole run answers exactly; it has no merge. `merge` says how the shares' answers are combined:
concatenated, or, with aggregates (sum, min, max or all), by merging rows that agree in all other columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

from rlscope.errors import QueryError

WORKER: Final = "worker"
SAMPLE: Final = "sample"
DRIVER: Final = "driver"
AGGREGATES: Final[Mapping[str, str]] = {"sum": "sum", "min": "min", "max": "max", "all": "bool_and"}
"""DuckDB's function for each aggregate of a header."""
CONCATENATE: Final = "concatenate"
OPENED: Final = ("worker_extents", "worker_spans")
"""The questions whose answers every open run holds as tables from the start, because macros read them."""
_CONTINUES: Final = " " * 4
"""A line of a header that begins with these continues the line before it."""


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """One `arg` or `out` line."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Question:
    """One file of queries/."""

    name: str
    question: str
    tables: tuple[str, ...]
    args: tuple[HeaderColumn, ...]
    outputs: tuple[HeaderColumn, ...]
    grain: str
    partition: str
    """Key that divides its rows into shares: worker, sample or driver."""
    merge: Mapping[str, str] | None
    """Aggregate by column; empty if the answers are concatenated, None if `partition` is driver."""
    sql: str


def queries_folder() -> Path:
    """Return the folder of the SQL files: inside the installed package, or beside it in a checkout."""
    packaged = Path(__file__).parents[1] / "queries"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "queries"


def macros_sql() -> str:
    """Return the SQL of the table macros that several questions use."""
    return (queries_folder() / "macros.sql").read_text(encoding="utf-8")


@cache
def questions() -> dict[str, Question]:
    """Return every question, by name."""
    paths = sorted(queries_folder().glob("*/*.sql"), key=lambda path: path.stem)
    return {path.stem: read_question(path) for path in paths}


def find_question(name: str) -> Question:
    """Return a question by name. Raises QueryError, with the nearest name, if there is none."""
    try:
        return questions()[name]
    except KeyError:
        near = get_close_matches(name, questions(), n=1)
        raise QueryError.of(
            f"query {name!r}",
            found="no such query",
            expected="one that `rlscope queries` lists",
            next_step=f"Did you mean {near[0]!r}?" if near else "Run `rlscope queries` to list them.",
        ) from None


def inputs_of(question: Question) -> list[Question]:
    """Return the questions whose answers this one depends on."""
    return [questions()[table] for table in question.tables if table in questions()]


@cache
def arguments_of(name: str) -> tuple[str, ...]:
    """Return the arguments that a question's answer depends on: its own, then those of its inputs."""
    question = find_question(name)
    inputs = (arg for needed in inputs_of(question) for arg in arguments_of(needed.name))
    return tuple(dict.fromkeys((*(arg.name for arg in question.args), *inputs)))


def read_question(path: Path) -> Question:
    """Read one file and its header. The tests check that each header has the form above."""
    sql = path.read_text(encoding="utf-8")
    header = _header(sql)
    partition, merged = ("; ".join(_tagged(header, tag)) for tag in ("partition:", "merge:"))
    aggregates = {} if merged == CONCATENATE else dict(_aggregates(merged))
    return Question(
        name=path.stem,
        question=header[0],
        tables=tuple(table.strip() for line in _tagged(header, "in ") for table in line.split(",") if table.strip()),
        args=tuple(_column(line) for line in _tagged(header, "arg ")),
        outputs=tuple(_column(line) for line in _tagged(header, "out ")),
        grain="".join(_tagged(header, "grain:")),
        partition=partition,
        merge=None if partition == DRIVER else aggregates,
        sql=sql,
    )


def _aggregates(text: str) -> Iterator[tuple[str, str]]:
    for part in text.split(";"):
        aggregate, _, names = part.strip().partition(" ")
        yield from ((name.strip(), aggregate) for name in names.split(",") if name.strip())


def _header(sql: str) -> list[str]:
    """Return the lines of the leading comment. One that is indented further continues the line before it."""
    lines: list[str] = []
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        text = line.removeprefix("--")
        if lines and text.startswith(_CONTINUES):
            lines[-1] += f" {text.strip()}"
        else:
            lines.append(text.strip())
    return lines


def _tagged(header: list[str], tag: str) -> list[str]:
    return [line.removeprefix(tag).strip() for line in header if line.startswith(tag)]


def _column(line: str) -> HeaderColumn:
    name, kind, meaning = line.split(maxsplit=2)
    return HeaderColumn(name, kind, meaning)
