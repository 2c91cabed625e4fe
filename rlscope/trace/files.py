"""Lists and checks the files of a table. A damaged file is skipped and listed with the reason."""

import os
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.journal import SUFFIX
from rlscope_otel.schema import FileNumber

from rlscope.text_out import for_terminal
from rlscope.trace.footers import Footer, read_footer
from rlscope.trace.journals import JournalRows

_GLOBS: Final = frozenset("*?[]{}")
"""Wildcards: a reader would take a name with one of them for several names."""
_CLOSED: Final = ".parquet"
_READ_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A readable file of a table."""

    path: Path
    footer: Footer
    """For a journal, what the footer of a Parquet file with its rows would say."""

    @property
    def is_journal(self) -> bool:
        """Whether this is an open journal."""
        return self.path.suffix == SUFFIX

    @property
    def owner(self) -> FileNumber:
        """Worker and number from the stamp or, if there is none, from the name."""
        stamp = self.footer.stamp
        return stamp.owner if stamp is not None else FileNumber.of(self.path.stem)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The readable files of one table, and the columns found in them."""

    paths: tuple[Path, ...]
    """The Parquet files."""
    columns: frozenset[str]
    rows: int
    is_plain: bool = False
    """Whether every column of every file has exactly the contract's type."""
    files: tuple[StoredFile, ...] = ()
    """The files with their footers, journals included."""

    @property
    def journals(self) -> tuple[StoredFile, ...]:
        """The open journals."""
        return tuple(file for file in self.files if file.is_journal)


def table_of(files: tuple[StoredFile, ...]) -> TableFiles:
    """Return the table that consists of these files."""
    return TableFiles(
        paths=tuple(file.path for file in files if not file.is_journal),
        columns=frozenset(name for file in files for name in file.footer.columns),
        rows=sum(file.footer.rows for file in files),
        is_plain=all(file.footer.is_plain for file in files),
        files=files,
    )


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file of the run folder that was not read."""

    path: str
    """Path of the file."""
    why: str
    """Reason why it was not read."""


def irregularity(path: Path, folder: Path) -> str | None:
    """Return why a file of a run folder is not opened, such as a pipe or a link to another place; None if it can be."""
    if not is_plain_name(path.name):
        return "a file whose name holds wildcards or unprintable characters"
    try:
        if _is_plainly_inside(path, folder):
            return None
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "a folder"
        if not stat.S_ISREG(mode):
            return "a pipe, a socket or a device"
        if not path.resolve().is_relative_to(folder.resolve()):
            return "a link that points outside the run folder"
    except (OSError, RuntimeError) as error:
        return f"a file that cannot be opened ({error})"
    return None


def is_plain_name(name: str) -> bool:
    """Return whether a file name has only printable characters and no wildcards."""
    return name.isprintable() and _GLOBS.isdisjoint(name)


def _is_plainly_inside(path: Path, folder: Path) -> bool:
    """Return whether the path is a regular file in the folder or one level below, without links: nearly all are."""
    holder = path.parent
    is_held = holder == folder or (holder.parent == folder and stat.S_ISDIR(os.lstat(holder).st_mode))
    return is_held and stat.S_ISREG(os.lstat(path).st_mode)


def list_table(
    folder: Path, table: str, journals: JournalRows | None = None, *, read_all: bool = False
) -> tuple[TableFiles, list[SkippedFile]]:
    """Return the files of a table, ordered by worker and number, and those that cannot be read.

    journals: reads the open journals and holds their rows. read_all: whether to read every Parquet file in full:
    damage inside a page does not show in its footer.
    """
    journals = journals or JournalRows()
    stored: list[StoredFile] = []
    skipped: list[SkippedFile] = []
    try:
        numbered = _data_files(folder / table)
    except OSError as error:
        return table_of(()), [SkippedFile(table, unlisted(error))]
    lone = [path for path, *_ in numbered if path.suffix == SUFFIX and irregularity(path, folder) is None]
    opened = dict(journals.footers(lone, table))
    for paths in numbered:
        for path in paths:
            footer = opened.get(path) or irregularity(path, folder)
            footer = footer or _footer(path, table, journals, read_all=read_all or len(paths) > 1)
            if isinstance(footer, Footer):
                stored.append(StoredFile(path, footer))
                break
            # A journal vanishes when its Parquet file has replaced it, which is the next path.
            if len(paths) == 1 or os.path.lexists(path):
                skipped.append(SkippedFile(name_in(folder, path), footer))
    return table_of(tuple(stored)), skipped


def _footer(path: Path, table: str, journals: JournalRows, *, read_all: bool) -> Footer | str:
    """Return the footer of a file, or why it cannot be read."""
    if path.suffix == SUFFIX:
        return dict(journals.footers([path], table))[path]
    footer = read_footer(path, table)
    why = page_fault(path) if read_all and isinstance(footer, Footer) else None
    return footer if why is None else f"cannot be read: {why}"


def page_fault(path: Path) -> str | None:
    """Return why the pages of a file cannot be read; None if each can, and matches its checksum if it has one."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches():
                batch.validate(full=True)
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        return str(error)
    return None


def file_crc32(path: Path) -> int | None:
    """Return the CRC-32 of a file, which is read in pieces; None if it cannot be read."""
    crc32 = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                crc32 = zlib.crc32(piece, crc32)
    except OSError:
        return None
    return crc32


def _data_files(folder: Path) -> list[tuple[Path, ...]]:
    """Return the files of a table by worker and number: each with the file to read if it cannot be read.

    A Parquet file replaces the journal of the same number. Raises OSError if the folder cannot be listed.
    """
    if not folder.is_dir():
        return []
    # A journal may be replaced during a listing that then shows neither of the two files. The next one shows the new.
    paths = {path for _ in range(2) for path in folder.iterdir() if path.suffix in (_CLOSED, SUFFIX)}
    found: list[tuple[Path, ...]] = []
    for path in paths:
        other = path.with_suffix(SUFFIX if path.suffix == _CLOSED else _CLOSED)
        if other not in paths:
            found.append((path,) if path.suffix == _CLOSED else (path, other))
        elif path.suffix == _CLOSED:
            found.append((path, other))
    return sorted(found, key=lambda each: (FileNumber.of(each[0].stem), each[0].name))


def unlisted(error: OSError) -> str:
    """Return why the files of a folder are not read, from the error of listing it."""
    return f"a folder that cannot be listed ({error.strerror})"


def name_in(folder: Path, path: Path) -> str:
    """Return the path of a file below a folder, as messages show it."""
    return for_terminal(path.relative_to(folder).as_posix())
