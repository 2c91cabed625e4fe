"""Writes a flush: each table's rows into its journal, then the worker's JSON. Runs on the flush thread.

Rows leave their buffer once they are on disk. While writing fails they stay, the buffer fills, and rows that no longer
fit are counted as dropped; once writing succeeds again, the next flush writes everything buffered.
"""

from collections.abc import Callable, Mapping, Sequence

from rlscope_otel import buffers, json_files, run_file, schema
from rlscope_otel.batches import Values, batch_of, coerced
from rlscope_otel.buffers import Row, RowBuffer
from rlscope_otel.clock import RunClock
from rlscope_otel.closing import Closing
from rlscope_otel.errors import SetupError
from rlscope_otel.faults import Faults
from rlscope_otel.open_journal import Journals, Owner
from rlscope_otel.settings import Settings
from rlscope_otel.tallies import Tallies
from rlscope_otel.worker_file import Progress, WorkerFile

_WORKER_COLUMN = {
    table: [column.name for column in columns].index("worker_id") for table, columns in schema.TABLES.items()
}


class Writer:
    """Puts one worker's rows into a run folder and keeps count of what it wrote and lost."""

    def __init__(
        self,
        settings: Settings,
        rows: Mapping[str, RowBuffer],
        clock: RunClock,
        faults: Faults,
        tallies: Tallies,
        open_phases: Callable[[], Sequence[Mapping[str, object]]],
    ) -> None:
        """Join the folder's run and claim a worker name. Raises SetupError for a folder that holds another run.

        If the folder cannot be written, that is a fault, and every flush tries again.
        """
        self.identity = settings.identity
        self.run_id: str | None = None
        self._settings = settings
        self._run_dir = settings.run_dir
        self._buffers = rows
        self._clock = clock
        self._faults = faults
        self._tallies = tallies
        self._open_phases = open_phases
        self._closing = Closing(faults)
        self._config = settings.config
        self._config_in_run: Mapping[str, object] = {}
        """The last `_config` that run.json was seen to have."""
        self._started_ns = clock.now_ns()
        self._stopped_ns: int | None = None
        self._worker_file = WorkerFile(settings.run_dir, settings.worker_id, self._started_ns)
        self._journals = {table: Journals(settings.run_dir / table) for table in schema.TABLES}
        try:
            self._enter()
        except OSError as error:
            self._note_unwritable(error)

    @property
    def worker_id(self) -> str:
        """The name that this worker records under; final once its file is claimed."""
        return self._worker_file.worker_id

    @property
    def is_claimed(self) -> bool:
        """Whether the name is final, and the worker's file there."""
        return self._worker_file.claimed

    def flush(self, stopped_ns: int | None = None) -> bool:
        """Write everything that is buffered; False if some of it could not be written."""
        self._stopped_ns = stopped_ns
        complete = False
        try:
            self._enter()
            complete = all([self._drain(table) for table in self._buffers])
            progress = self._progress()
            self._tallies.settle()
            if complete:
                self._tallies.report(self.worker_id, self.identity, progress)
            config = self._config
            if config is not self._config_in_run and run_file.add_config(self._run_dir, config):
                self._config_in_run = config
            self._state(progress)
        except (OSError, SetupError) as error:
            complete = False
            self._note_unwritable(error)
        if complete:
            self._close_ended()
        else:
            self._closing.cancel()
        return complete

    def close_some(self) -> bool:
        """Do a slice of the closing of journals; False when there is none to do at the moment."""
        return self._closing.step()

    def close_all(self) -> None:
        """Close every journal: the recording is over, and nothing is written after it."""
        for journals in self._journals.values():
            journals.end()
        self._close_ended()
        self._closing.hurry()
        while self._closing.step():
            pass
        try:
            self._enter()
            self._state(self._progress())
        except (OSError, SetupError) as error:
            self._note_unwritable(error)

    def add_config(self, config: Mapping[str, object]) -> None:
        """Add settings, which the next flush writes. Raises what the values raise if they cannot be JSON."""
        known = {name: value for name, value in config.items() if value is not None}
        self._config = {**self._config, **json_files.as_read(known)}

    def give_up(self) -> int:
        """Count all buffered rows as dropped; returns how many."""
        held = {table: len(buffer) for table, buffer in self._buffers.items()}
        for table, count in held.items():
            self._buffers[table].drop(count)
            self._buffers[table].discard(count)
        return sum(held.values())

    def _state(self, progress: Progress) -> None:
        """Write the worker file, after which the journals that it says are closed are replaced. Raises OSError."""
        self._worker_file.write(self.identity, progress)
        self._closing.stated()

    def _close_ended(self) -> None:
        for journals in self._journals.values():
            self._closing.add(journals.ended())

    def _note_unwritable(self, error: Exception) -> None:
        self._faults.note(f"cannot write {self._run_dir}", error)

    def _enter(self) -> None:
        # The folder may be removed while it is recorded: what comes after would belong to no run.
        if self.run_id is None or not run_file.exists(self._run_dir):
            run_id = self.run_id or self._settings.run_id
            self.run_id, other = run_file.join_run(self._run_dir, run_id, self._config, self._started_ns)
            if other:
                self._faults.note("config", f"run.json already has other values for {', '.join(other)}, and keeps them")
        if not self._worker_file.claimed:
            wanted = self.worker_id
            self._worker_file.claim(self.identity, self._progress())
            if self.worker_id != wanted:
                self._faults.note(
                    "worker id", f"{wanted!r} already exists in {self._run_dir}; recording as {self.worker_id!r}"
                )

    def _drain(self, table: str) -> bool:
        """Write what one table holds now, in batches of at most `ROWS_PER_BATCH`."""
        buffer = self._buffers[table]
        held = len(buffer)
        while held > 0:
            rows = buffer.oldest(min(held, buffers.ROWS_PER_BATCH))
            try:
                written = self._write(table, rows)
            except OSError as error:
                self._note_unwritable(error)
                return False
            except Exception as error:  # A batch that nothing can save must not stand in the way of the next.
                self._faults.note(f"rows of {table} lost", error)
                written = 0
            buffer.drop(len(rows) - written)
            buffer.discard(len(rows))
            held -= len(rows)
        return True

    def _write(self, table: str, rows: list[Row]) -> int:
        """Append one batch; returns how many of the rows are in it."""
        columns = self._columns(table, rows)
        try:
            batch = batch_of(table, columns)
        except Exception as error:  # The host's values may fail to convert in any way; most can be saved one by one.
            columns = self._coerced_columns(table, columns, error)
            if not columns:
                return 0
            batch = batch_of(table, columns)
        self._journals[table].append(batch, Owner(self.run_id or "", self.worker_id))
        # The rows are on disk: a total that cannot take them in is no reason to lose them.
        self._faults.attempt("metrics", self._tallies.batch, table, columns)
        return batch.num_rows

    def _columns(self, table: str, rows: list[Row]) -> list[Values]:
        columns: list[Values] = list(zip(*rows, strict=True))
        columns.insert(_WORKER_COLUMN[table], [self.worker_id] * len(rows))
        return columns

    def _coerced_columns(self, table: str, columns: list[Values], error: Exception) -> list[Values]:
        """Only the rows whose values can be made to fit; the caller counts the others as dropped."""
        rows = [coerced(table, row) for row in zip(*columns, strict=True)]
        kept = [row for row in rows if row is not None]
        if len(kept) < len(rows):
            self._faults.note(f"rows of {table} lost", error)
        return list(zip(*kept, strict=True))

    def _progress(self) -> Progress:
        return Progress(
            run_id=self.run_id,
            last_flush_ns=self._clock.now_ns(),
            stopped_ns=self._stopped_ns,
            rows={table: journals.rows for table, journals in self._journals.items()},
            closed=self._closing.closed,
            dropped={table: buffer.dropped for table, buffer in self._buffers.items()},
            open=self._open_phases() if self._stopped_ns is None else (),
            config=self._config,
        )
