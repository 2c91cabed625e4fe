"""Separates the rows of several starts that recorded into one run folder: reused ids and earlier recordings.

Each start of a recorder has its own worker file, so the worker of a row identifies the start. If trainers restart at a
step that an earlier start had already made, everything before the last such restart is an earlier recording and is left
out. Otherwise all starts form one run, and a sample id that two starts used stands for two samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from duckdb import DuckDBPyConnection
from rlscope_otel.schema import TABLES, TIMES

from rlscope import format as fmt
from rlscope.trace.clocks import RECORDED
from rlscope.trace.sql import literals, set_aside
from rlscope.trace.worker_files import Worker

_RENAMED: Final = f"{RECORDED}with_reused_ids_"
_UNCUT: Final = f"{RECORDED}with_earlier_"
"""Prefix of a table's version from before earlier recordings were left out; `_RENAMED`: before ids were told apart."""
_REUSED: Final = f"{RECORDED}reused_ids"
_TRAINERS: Final = ("trainer", "colocated")
_BY_SAMPLE: Final = ("samples", "deliveries")


@dataclass(frozen=True, slots=True)
class Sessions:
    """The workers of the analyzed recording, and how it was separated from others."""

    workers: Sequence[Worker]
    gaps: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    """Tables whose rows differ from the files."""
    settings: Mapping[str, object] | None = None
    """Settings of the last recording; None if the folder holds one recording."""


def keep_sessions_apart(connection: DuckDBPyConnection, workers: Sequence[Worker]) -> Sessions:
    """Replace the tables by the rows of one run. Raises duckdb.Error if a file cannot be read."""
    lives = sorted(workers, key=lambda each: (each.started_ns, each.last_ns, each.worker_id))
    restarts = _restarts(lives)
    if not restarts:
        return Sessions(workers)
    cut_ns, gaps = _last_recording(lives, connection)
    if cut_ns is not None:
        present = {life.worker_id for life in lives if max(life.last_ns, life.started_ns + 1) > cut_ns}
        workers = [
            replace(each, started_ns=max(cut_ns, each.started_ns)) for each in workers if each.worker_id in present
        ]
        restarts = [at_ns for at_ns in restarts if at_ns > cut_ns]
        _leave_out_before(connection, cut_ns, sorted(present))
    reused = _tell_ids_apart(connection, restarts)
    return Sessions(
        workers=workers,
        gaps=(*gaps, _reused_words(reused)) if reused else gaps,
        replaced=tuple(TABLES) if cut_ns is not None else _BY_SAMPLE if reused else (),
        settings=None if cut_ns is None else _settings(workers, cut_ns),
    )


def _restarts(lives: Sequence[Worker]) -> list[int]:
    """Return the start times of workers that started after another worker had ended."""
    first_end_ns = min((life.last_ns for life in lives), default=0)
    return sorted(
        {life.started_ns for life in lives if life.started_ns >= first_end_ns and life.last_ns > first_end_ns}
    )


def _last_recording(lives: Sequence[Worker], connection: DuckDBPyConnection) -> tuple[int | None, tuple[str, ...]]:
    """Return where the last recording begins, None if there is only one, and a sentence if trainers restarted."""
    trainers = [life for life in lives if life.role in _TRAINERS]
    if len(list(_generations(trainers))) < 2:
        return None, ()
    made = "SELECT worker_id, min(step), max(step) FROM train_steps GROUP BY worker_id"
    steps = {str(worker_id): (first, last) for worker_id, first, last in connection.execute(made).fetchall()}
    # A trainer without steps may have crashed before its first step if it was restarted; otherwise it trains nothing.
    names = {life.name for life in trainers if life.worker_id in steps}
    generations = list(_generations([life for life in trainers if life.name in names]))
    cut_ns: int | None = None
    last_steps: list[int] = []
    for place, generation in enumerate(generations):
        made_steps = [steps[life.worker_id] for life in generation if life.worker_id in steps]
        if place and made_steps and (not last_steps or min(made_steps)[0] <= max(last_steps)):
            ended_ns = max(life.last_ns for each in generations[:place] for life in each)
            began_ns = min(life.started_ns for life in generation)
            # A worker that was killed early appears to end at its last flush, which may be at its start.
            beside = (life for life in lives if life.started_ns >= ended_ns and life.last_ns > began_ns)
            cut_ns, last_steps = min([began_ns, *(life.started_ns for life in beside)]), []
        last_steps += [last for _, last in made_steps]
    if cut_ns is not None:
        return cut_ns, (
            f"This folder holds more than one recording; only the last one, from {fmt.instant(cut_ns)} on, "
            "is analyzed. Record each run in its own folder",
        )
    starts = len(generations)
    resumed = (
        f"train_steps: trainers were started {starts} times, and each start resumed the steps of the previous one; "
        "the steady state is of one start, and all else is of the whole run, pauses included"
    )
    return None, (resumed,) if starts > 1 else ()


def _generations(trainers: Sequence[Worker]) -> Iterator[list[Worker]]:
    """Yield groups of trainers that ran concurrently; each group starts after all of the previous group ended."""
    own: list[Worker] = []
    for life in trainers:
        if own and life.started_ns >= max(each.last_ns for each in own):
            yield own
            own = []
        own.append(life)
    if own:
        yield own


def _settings(workers: Sequence[Worker], at_ns: int) -> dict[str, object]:
    """Return the settings of the last recording, from its workers; run.json has those of the first."""
    settings: dict[str, object] = {}
    for worker in workers:
        if worker.config is not None and worker.started_ns >= at_ns:
            settings |= worker.config
    return settings


def _tell_ids_apart(connection: DuckDBPyConnection, restarts: Sequence[int]) -> int:
    """Rename samples and groups whose ids several starts used; return the number of such sample ids.

    A sample belongs to the start in which it finished; a delivery belongs to the last sample with its id that had
    finished by then.
    """
    start = f"len(list_filter({list(restarts)}, lambda at_ns: at_ns <= finished_ns))"
    connection.execute(f"""
        CREATE OR REPLACE TABLE {_REUSED} AS
        WITH repeated AS (
            SELECT sample_id FROM samples GROUP BY sample_id HAVING count(*) > count(DISTINCT segment)
        )
        SELECT sample_id, any_value(group_id) AS group_id, {start} AS start, max(finished_ns) AS finished_ns
        FROM samples SEMI JOIN repeated USING (sample_id)
        GROUP BY sample_id, start
        QUALIFY count(*) OVER (PARTITION BY sample_id) > 1""")
    ids = connection.execute(f"SELECT count(DISTINCT sample_id) FROM {_REUSED}").fetchall()[0][0]
    if not ids:
        return 0
    renamed = ", ".join(
        f"if({name} IN (SELECT {name} FROM {_REUSED}), {_named(name, start)}, {name}) AS {name}"
        for name in ("sample_id", "group_id")
    )
    _replace(connection, "samples", _RENAMED, f"SELECT * REPLACE ({renamed}) FROM {_RENAMED}samples")
    select = f"""
        SELECT taken.* REPLACE ({_named("taken.sample_id", "coalesce(start, 0)")} AS sample_id)
        FROM {_RENAMED}deliveries AS taken ASOF LEFT JOIN {_REUSED} AS reused
        ON taken.sample_id = reused.sample_id AND coalesce(queued_ns, taken_ns) >= reused.finished_ns"""
    _replace(connection, "deliveries", _RENAMED, select)
    return int(ids)


def _named(name: str, start: str) -> str:
    return f"if({start} = 0, {name}, {name} || '~' || {start})"


def _leave_out_before(connection: DuckDBPyConnection, at_ns: int, workers: Sequence[str]) -> None:
    """Leave out the rows of other workers and rows before a time.

    An earlier sample of these workers stays if it is delivered later, unless a later sample has its id.
    """
    names = literals(workers)
    # The samples come last because their filter reads the reduced deliveries.
    for table in sorted(TABLES, key="samples".__eq__):
        rows = f"SELECT * FROM {_UNCUT}{table}"
        since = f"worker_id IN ({names}) AND {TIMES[table][1]} >= {at_ns}"
        select = f"{rows} WHERE {since}"
        if table == "samples":
            waiting = f"SELECT sample_id FROM deliveries EXCEPT SELECT sample_id FROM {_UNCUT}samples WHERE {since}"
            select += f" OR (worker_id IN ({names}) AND sample_id IN ({waiting}))"
        _replace(connection, table, _UNCUT, select)


def _replace(connection: DuckDBPyConnection, table: str, prefix: str, select: str) -> None:
    connection.execute(f"CREATE {set_aside(connection, table, prefix)} {table} AS {select}")


def _reused_words(ids: int) -> str:
    used = fmt.counted(ids, "sample id", "sample ids")
    return f"samples: a restarted worker reused {used}; the samples are told apart by time and each counts once"
