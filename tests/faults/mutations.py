"""What can happen to a run folder: each mutation changes one thing, drawn from a seed, and says what it concerns."""

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.journal import SUFFIX, head_length, whole_batches
from rlscope_otel.schema import TABLES, TIMES

YEAR_NS: Final = 365 * 86_400 * 10**9
HOSTILE_TEXTS: Final = (
    "\x1b]0;owned\x07\x1b[2J",
    "a\r\nb\n::error::injected",
    "\x00",
    "\x9b31m",
    "\x08\x08\x08",
    "<script>alert(1)</script>",
    '=HYPERLINK("http://x")',
    "]]><x>",
    "\ufffe\uffff",
    "| a | **b** [c](javascript:x) `d`",
    "{{ 7 * 7 }}",
    "' OR 1=1 --",
    "\u202egnp.exe",
    "",
)

_CLOSED_VALUES: Final = {
    "samples": ["version_source"],
    "deliveries": ["outcome"],
    "weight_updates": ["phase"],
    "activities": ["activity"],
}
"""Columns with a fixed set of words, by table."""


@dataclass(frozen=True)
class Mutation:
    """One thing that was done to a run."""

    kind: str
    about: tuple[str, ...]
    """Words of which the report must name one where its numbers differ: a file, a table, a worker, an entry."""
    is_truth: bool = False
    """Whether the change is a statement that nothing can contradict, such as another setting."""


Apply = Callable[[Path, random.Random], Mutation]


def mutate(folder: Path, seed: int, *, counted: bool) -> Mutation:
    """Do one thing to a run. counted: whether it states checksums; without them some things cannot be known."""
    rng = random.Random(seed)
    kinds = [*KINDS, *(KINDS_THAT_CHECKSUMS_SHOW if counted else {})]
    kind = kinds[seed % len(kinds)]
    apply = KINDS.get(kind) or KINDS_THAT_CHECKSUMS_SHOW[kind]
    return apply(folder, rng)


def _tables(folder: Path) -> list[str]:
    return [table for table in TABLES if any((folder / table).glob("*.parquet"))]


def _any_file(folder: Path, rng: random.Random) -> Path:
    """A closed file or a journal."""
    return rng.choice(sorted((folder / rng.choice(_tables(folder))).iterdir()))


def _any_closed(folder: Path, rng: random.Random, tables: list[str] | None = None) -> Path:
    table = rng.choice([each for each in tables or _tables(folder) if each in _tables(folder)])
    return rng.choice(sorted((folder / table).glob("*.parquet")))


def _about(path: Path) -> tuple[str, ...]:
    """The file, or its table and worker: a sentence that counts rows names those."""
    return (path.name, f"{path.parent.name}:", f"{path.parent.name}/")


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a file."""
    pq.write_table(change(pq.read_table(path)), path)


def _with_values(rows: pa.Table, column: str, values: list[Any]) -> pa.Table:
    index = rows.column_names.index(column)
    kind = rows.schema.field(column).type
    return rows.set_column(index, pa.field(column, kind), pa.array(values, kind))


def _overwrite(path: Path, column: str, value: Any, share: float, most: int | None = None) -> None:
    """Put a value into this share of a file's rows: into its first ones, at least one and at most so many."""

    def change(rows: pa.Table) -> pa.Table:
        values = rows[column].to_pylist()
        count = max(1, int(len(values) * share))
        count = count if most is None else min(count, most)
        return _with_values(rows, column, [value] * count + values[count:])

    rewrite(path, change)


def remove_file(folder: Path, rng: random.Random) -> Mutation:
    path = _any_file(folder, rng)
    path.unlink()
    return Mutation("a file removed", _about(path))


def remove_table(folder: Path, rng: random.Random) -> Mutation:
    table = rng.choice(_tables(folder))
    shutil.rmtree(folder / table)
    return Mutation("a table removed", (f"{table}:",))


def copy_file(folder: Path, rng: random.Random) -> Mutation:
    path = _any_file(folder, rng)
    worker_id = path.stem.rpartition("-")[0]
    other = rng.choice([worker_id, "somebody", *(each.stem for each in (folder / "workers").glob("*.json"))])
    number = rng.choice(("000004", "000005", "000077", "999999"))
    copy = path.with_name(f"{other}-{number}{path.suffix}")
    shutil.copy(path, copy)
    return Mutation("a file copied", (*_about(path), *_about(copy)))


def rename_file(folder: Path, rng: random.Random) -> Mutation:
    path = _any_file(folder, rng)
    path.rename(path.with_name(rng.choice(("x.parquet", "*-000001.parquet", "a b-000009.parquet", "é-1.parquet"))))
    return Mutation("a file renamed", _about(path))


def swap_files(folder: Path, rng: random.Random) -> Mutation:
    one = _any_file(folder, rng)
    other = _any_file(folder, rng)
    if one != other:
        held = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(held)
    return Mutation("two files swapped", (*_about(one), *_about(other)))


def cut_file(folder: Path, rng: random.Random) -> Mutation:
    path = _any_file(folder, rng)
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])
    return Mutation("a file cut", _about(path))


def blank_file(folder: Path, rng: random.Random) -> Mutation:
    path = _any_file(folder, rng)
    content = bytearray(path.read_bytes())
    first = rng.randrange(len(content))
    last = min(len(content), first + rng.choice((1, 16, 512)))
    content[first:last] = bytes(last - first)
    path.write_bytes(content)
    return Mutation("bytes zeroed", _about(path))


def move_batch(folder: Path, rng: random.Random) -> Mutation:
    """A whole batch of a journal, which is as it was written, is gone or somewhere else."""
    paths = sorted(folder.glob(f"*/*{SUFFIX}"))
    if not paths:
        return remove_rows(folder, rng)
    path = rng.choice(paths)
    content = path.read_bytes()
    length = head_length(content) or 0
    batch = rng.choice(list(whole_batches(content, length, zlib.crc32(content[:length]))))
    rest = content[: batch.start] + content[batch.end :]
    path.write_bytes(rest + rng.choice((b"", content[batch.start : batch.end])))
    return Mutation("a batch moved", _about(path))


def append_to_file(folder: Path, rng: random.Random) -> Mutation:
    path = _any_file(folder, rng)
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice((1, 8, 4096))))
    return Mutation("bytes appended", _about(path))


def flip_bits(folder: Path, rng: random.Random) -> Mutation:
    path = _any_file(folder, rng)
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return Mutation("bits flipped", _about(path))


def odd_file(folder: Path, rng: random.Random) -> Mutation:
    """Something among the files that is none."""
    where = rng.choice([*_tables(folder), "workers"])
    path = folder / where / ("odd.json" if where == "workers" else "odd-000001.parquet")
    match rng.randrange(6):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to("/etc/passwd")
        case 3:
            path.symlink_to(path)
        case 4:
            path.write_bytes(b"")
        case _:
            path.write_bytes(rng.randbytes(5000))
    return Mutation("what is no file", (path.name,))


def odd_folder(folder: Path, rng: random.Random) -> Mutation:
    """A table that is a file, a link or a pipe; or no workers."""
    name = rng.choice([*_tables(folder), "workers"])
    shutil.rmtree(folder / name)
    match rng.randrange(4):
        case 0:
            (folder / name).write_text("text")
        case 1:
            (folder / name).symlink_to("/usr/share")
        case 2:
            os.mkfifo(folder / name)
        case _:
            pass
    return Mutation("a folder replaced", (f"{name}:", f"{name}/"))


def repeat_rows(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng)
    share = rng.choice((0.01, 0.5, 1.0))
    rewrite(path, lambda rows: pa.concat_tables([rows, rows.slice(0, max(1, int(rows.num_rows * share)))]))
    return Mutation("rows repeated", _about(path))


def remove_rows(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng)
    first = rng.randrange(pq.read_metadata(path).num_rows)
    rewrite(path, lambda rows: pa.concat_tables([rows.slice(0, first), rows.slice(first + 1)]))
    return Mutation("a row removed", _about(path))


def null_values(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng)
    table = path.parent.name
    column = rng.choice([column.name for column in TABLES[table] if not column.nullable])
    _overwrite(path, column, None, rng.choice((0.01, 0.5, 1.0)))
    return Mutation("NULL where there is none", (*_about(path), column))


def unknown_words(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng, list(_CLOSED_VALUES))
    column = rng.choice(_CLOSED_VALUES[path.parent.name])
    return _texts(path, rng, column, "unheard_of", "an unknown word")


def long_text(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng)
    columns = [column.name for column in TABLES[path.parent.name] if column.type == pa.string()]
    return _texts(path, rng, rng.choice(columns), "x" * rng.choice((10**5, 10**7)), "a long text")


def hostile_text(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng)
    columns = [column.name for column in TABLES[path.parent.name] if column.type == pa.string()]
    return _texts(path, rng, rng.choice(columns), rng.choice(HOSTILE_TEXTS), "a hostile text")


def _texts(path: Path, rng: random.Random, column: str, text: str, kind: str) -> Mutation:
    _overwrite(path, column, text, rng.choice((0.001, 1.0)), most=200 if len(text) < 1000 else 2)
    return Mutation(kind, (*_about(path), column))


def odd_numbers(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng)
    columns = [column for column in TABLES[path.parent.name] if pa.types.is_integer(column.type)]
    column = rng.choice(columns)
    odd = (0, -1, 2**31 - 1) if column.type == pa.int32() else (0, -1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
    value = rng.choice(odd)
    _overwrite(path, column.name, value, rng.choice((0.001, 1.0)))
    return Mutation(f"{column.name} of {value}", (*_about(path), column.name))


def odd_reals(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng, ["train_steps", "deliveries"])
    column = rng.choice([column.name for column in TABLES[path.parent.name] if column.type == pa.float64()])
    value = rng.choice((float("nan"), float("inf"), -1e308, 1e308))
    _overwrite(path, column, value, 1.0)
    return Mutation(f"{column} of {value}", (*_about(path), column))


def other_year(folder: Path, rng: random.Random) -> Mutation:
    """One file far ahead of or behind the others."""
    path = _any_closed(folder, rng)
    shift_ns = rng.choice((3 * YEAR_NS, -30 * YEAR_NS, 60 * 86_400 * 10**9))
    names = [column.name for column in TABLES[path.parent.name] if column.unit == "ns"]

    def change(rows: pa.Table) -> pa.Table:
        for name in set(names) - {"busy_ns", "env_wait_ns"}:
            values = [None if each is None else each + shift_ns for each in rows[name].to_pylist()]
            rows = _with_values(rows, name, values)
        return rows

    rewrite(path, change)
    return Mutation("a file of another year", _about(path))


def turned_times(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng, [table for table, (first, last) in TIMES.items() if first != last])
    first, last = TIMES[path.parent.name]

    def change(rows: pa.Table) -> pa.Table:
        starts, ends = rows[first].to_pylist(), rows[last].to_pylist()
        return _with_values(_with_values(rows, first, ends), last, starts)

    rewrite(path, change)
    return Mutation("ends before starts", _about(path))


def odd_versions(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng, ["samples"])
    odd: list[Any] = [
        [],
        [{"version": 2**40, "start": 0, "end": 1}],
        [{"version": -(2**63), "start": 0, "end": 1}],
        [{"version": 1, "start": 5, "end": 1}],
        [{"version": each, "start": each, "end": each + 1} for each in range(20_000)],
        [{"version": 0, "start": -(2**31), "end": 2**31 - 1}],
    ]
    _overwrite(path, "versions", rng.choice(odd), 0.0)
    return Mutation("version runs that cannot be", (*_about(path), "versions"))


def shadow_column(folder: Path, rng: random.Random) -> Mutation:
    path = _any_closed(folder, rng)
    column = rng.choice(TABLES[path.parent.name]).name

    def change(rows: pa.Table) -> pa.Table:
        return rows.append_column(column.upper(), pa.array([None] * rows.num_rows, rows.schema.field(column).type))

    rewrite(path, change)
    return Mutation("a column shadowed", _about(path))


def other_column(folder: Path, rng: random.Random) -> Mutation:
    """A column dropped, or of another type."""
    path = _any_closed(folder, rng)
    column = rng.choice([column.name for column in TABLES[path.parent.name] if not column.nullable])

    def change(rows: pa.Table) -> pa.Table:
        if rng.random() < 0.5:
            return rows.drop_columns([column])
        return rows.set_column(rows.column_names.index(column), column, pa.array(["x"] * rows.num_rows))

    rewrite(path, change)
    # What a sample was called is told by the deliveries that miss it, where no checksum tells.
    missed = ("name a sample that was not recorded",) if column == "sample_id" else ()
    return Mutation("another column", (*_about(path), column, *missed))


def remove_worker(folder: Path, rng: random.Random) -> Mutation:
    path = rng.choice(sorted((folder / "workers").glob("*.json")))
    path.unlink()
    return Mutation("a worker file removed", (path.stem, "worker file"))


def odd_worker(folder: Path, rng: random.Random) -> Mutation:
    path = rng.choice(sorted((folder / "workers").glob("*.json")))
    worker = json.loads(path.read_text())
    stopped_ns = worker["stopped_ns"]
    changes: list[Mapping[str, Any]] = [
        {"started_ns": 0},
        {"stopped_ns": 0},
        {"last_flush_ns": 0, "stopped_ns": None},
        {"stopped_ns": stopped_ns + 3 * YEAR_NS},
        {"stopped_ns": worker["started_ns"] - 1},
        {"dropped": {"samples": 10**40}},
        {"dropped": {"samples": 2**62, "no_table": 3}},
        {"rows": {"samples": -5}},
        {"rows": None, "closed": {"samples": {"1": "x"}}},
        {"rows": dict.fromkeys(TABLES, 10**18), "closed": {table: {"1": 2**40} for table in TABLES}},
        {"gpu_count": -1},
        {"gpu_count": 2**31 - 1},
        {"role": "boss"},
        {"role": None},
        {"host": "\x1b[2J\n::error::x", "device_name": "\ud800"},
        {"host": "h" * 10**6},
        {"kv_capacity_tokens": -5, "max_running": 0},
        {"worker_id": "../../etc/passwd"},
        {"started_ns": float("nan")},
    ]
    path.write_text(json.dumps(worker | dict(rng.choice(changes))))
    return Mutation("a worker file changed", (path.stem, "dropped", *_NAMED_BY_COUNT), is_truth=True)


_NAMED_BY_COUNT: Final = ("Capture dropped",)


def broken_json(folder: Path, rng: random.Random) -> Mutation:
    path = rng.choice([folder / "run.json", *sorted((folder / "workers").glob("*.json"))])
    text = path.read_bytes()
    contents = [
        b"",
        b"{",
        text[: len(text) // 2],
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        bytes(20_000_000),
        b"\xff\xfe" + text,
        b"[1]",
        b"null",
        text.replace(b":", b": 1e999,", 1),
        b"1" * 10_000,
    ]
    path.write_bytes(rng.choice(contents))
    return Mutation("broken JSON", (path.name, path.stem))


def odd_setting(folder: Path, rng: random.Random) -> Mutation:
    path = folder / "run.json"
    manifest = json.loads(path.read_text())
    settings = ("total_gpus", "samples_per_step", "group_size", "max_staleness", "max_in_flight_samples",
                "max_running_samples", "queue_capacity_samples", "max_output_tokens", "max_running",
                "gpus_per_engine", "gpus_per_trainer_replica", "model", "framework", "total_steps", "gpu_hour_price",
                "currency", "batches_ahead", "staleness_policy", "in_flight_until_trained")  # fmt: skip
    odd = (0, -1, 1, 2**63 - 1, -(2**63), 10**40, 0.5, 1e9, 1e308, float("nan"), "", "{x}", "${HOME}", "\x1b[2J", True,
           None, [], {}, {"parameters": -1, "layers": 0}, {"parameters": 1e30, "layers": 10**9}, [[[]]])  # fmt: skip
    manifest["config"][rng.choice(settings)] = rng.choice(odd)
    path.write_text(json.dumps(manifest))
    return Mutation("a setting changed", ("run.json",), is_truth=True)


def odd_manifest(folder: Path, rng: random.Random) -> Mutation:
    path = folder / "run.json"
    manifest = json.loads(path.read_text())
    changes: list[Mapping[str, Any]] = [
        {"created_ns": 0},
        {"created_ns": manifest["created_ns"] + 3 * YEAR_NS},
        {"created_ns": -(2**63)},
        {"config": None},
        {"run_id": "r" * 10**6},
        {"run_id": "\x1b[2J\n| x |"},
        {"version": 99},
        {"format": "other"},
    ]
    path.write_text(json.dumps(manifest | dict(rng.choice(changes))))
    return Mutation("run.json changed", ("run.json", "samples of run", "run '"), is_truth=True)


KINDS: Final[Mapping[str, Apply]] = {
    each.__name__: each
    for each in (
        remove_file, remove_table, copy_file, rename_file, swap_files, cut_file, move_batch, append_to_file, odd_file,
        odd_folder, repeat_rows, remove_rows, null_values, unknown_words, long_text, shadow_column, other_column,
        other_year, turned_times, remove_worker, odd_worker, broken_json, odd_setting, odd_manifest,
    )
}  # fmt: skip
KINDS_THAT_CHECKSUMS_SHOW: Final[Mapping[str, Apply]] = {
    each.__name__: each for each in (flip_bits, blank_file, hostile_text, odd_numbers, odd_reals, odd_versions)
}
