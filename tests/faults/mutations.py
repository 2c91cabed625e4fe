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


Apply = Callable[[Path, random.Random], tuple[str, ...]]
"""Does one thing to a run; returns the words of `Mutation.about`."""


def mutate(folder: Path, seed: int, *, counted: bool) -> Mutation:
    """Do one thing to a run. counted: whether it states checksums; without them some things cannot be known."""
    kinds = {**KINDS, **(KINDS_THAT_CHECKSUMS_SHOW if counted else {})}
    kind = list(kinds)[seed % len(kinds)]
    return Mutation(kind, kinds[kind](folder, random.Random(seed)), kind in STATEMENTS)


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


def _any_column(path: Path, rng: random.Random, kind: pa.DataType) -> str:
    return rng.choice([column.name for column in TABLES[path.parent.name] if column.type == kind])


def _overwrite(path: Path, column: str, value: Any, share: float, most: int | None = None) -> tuple[str, ...]:
    """Put a value into this share of a file's rows: into its first ones, at least one and at most so many."""

    def change(rows: pa.Table) -> pa.Table:
        values = rows[column].to_pylist()
        count = max(1, int(len(values) * share))
        count = count if most is None else min(count, most)
        return _with_values(rows, column, [value] * count + values[count:])

    rewrite(path, change)
    return (*_about(path), column)


def remove_file(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_file(folder, rng)
    path.unlink()
    return _about(path)


def remove_table(folder: Path, rng: random.Random) -> tuple[str, ...]:
    table = rng.choice(_tables(folder))
    shutil.rmtree(folder / table)
    return (f"{table}:",)


def copy_file(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_file(folder, rng)
    worker_id = path.stem.rpartition("-")[0]
    other = rng.choice([worker_id, "somebody", *(each.stem for each in (folder / "workers").glob("*.json"))])
    number = rng.choice(("000004", "000005", "000077", "999999"))
    copy = path.with_name(f"{other}-{number}{path.suffix}")
    shutil.copy(path, copy)
    return (*_about(path), *_about(copy))


def rename_file(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_file(folder, rng)
    path.rename(path.with_name(rng.choice(("x.parquet", "*-000001.parquet", "a b-000009.parquet", "é-1.parquet"))))
    return _about(path)


def swap_files(folder: Path, rng: random.Random) -> tuple[str, ...]:
    one = _any_file(folder, rng)
    other = _any_file(folder, rng)
    if one != other:
        held = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(held)
    return (*_about(one), *_about(other))


def _of_bytes(change: Callable[[bytearray, random.Random], bytes]) -> Apply:
    """Changes the bytes of any file."""

    def apply(folder: Path, rng: random.Random) -> tuple[str, ...]:
        path = _any_file(folder, rng)
        path.write_bytes(change(bytearray(path.read_bytes()), rng))
        return _about(path)

    return apply


def _zeroed(content: bytearray, rng: random.Random) -> bytes:
    first = rng.randrange(len(content))
    last = min(len(content), first + rng.choice((1, 16, 512)))
    return content[:first] + bytes(last - first) + content[last:]


def _flipped(content: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 3)):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def move_batch(folder: Path, rng: random.Random) -> tuple[str, ...]:
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
    return _about(path)


def odd_file(folder: Path, rng: random.Random) -> tuple[str, ...]:
    """Something among the files that is none."""
    where = rng.choice([*_tables(folder), "workers"])
    path = folder / where / ("odd.json" if where == "workers" else "odd-000001.parquet")
    put: tuple[Callable[[], object], ...] = (
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: path.symlink_to("/etc/passwd"),
        lambda: path.symlink_to(path),
        path.touch,
        lambda: path.write_bytes(rng.randbytes(5000)),
    )
    rng.choice(put)()
    return (path.name,)


def odd_folder(folder: Path, rng: random.Random) -> tuple[str, ...]:
    """A table that is a file, a link or a pipe; or no workers."""
    name = rng.choice([*_tables(folder), "workers"])
    shutil.rmtree(folder / name)
    put: tuple[Callable[[], object], ...] = (
        lambda: (folder / name).write_text("text"),
        lambda: (folder / name).symlink_to("/usr/share"),
        lambda: os.mkfifo(folder / name),
        lambda: None,
    )
    rng.choice(put)()
    return (f"{name}:", f"{name}/")


def repeat_rows(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng)
    share = rng.choice((0.01, 0.5, 1.0))
    rewrite(path, lambda rows: pa.concat_tables([rows, rows.slice(0, max(1, int(rows.num_rows * share)))]))
    return _about(path)


def remove_rows(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng)
    first = rng.randrange(pq.read_metadata(path).num_rows)
    rewrite(path, lambda rows: pa.concat_tables([rows.slice(0, first), rows.slice(first + 1)]))
    return _about(path)


def null_values(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng)
    column = rng.choice([column.name for column in TABLES[path.parent.name] if not column.nullable])
    return _overwrite(path, column, None, rng.choice((0.01, 0.5, 1.0)))


def unknown_words(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng, list(_CLOSED_VALUES))
    column = rng.choice(_CLOSED_VALUES[path.parent.name])
    return _overwrite(path, column, "unheard_of", rng.choice((0.001, 1.0)), most=200)


def long_text(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng)
    column, text = _any_column(path, rng, pa.string()), "x" * rng.choice((10**5, 10**7))
    return _overwrite(path, column, text, rng.choice((0.001, 1.0)), most=2)


def hostile_text(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng)
    column, text = _any_column(path, rng, pa.string()), rng.choice(HOSTILE_TEXTS)
    return _overwrite(path, column, text, rng.choice((0.001, 1.0)), most=200)


def odd_numbers(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng)
    column = rng.choice([column for column in TABLES[path.parent.name] if pa.types.is_integer(column.type)])
    odd = (0, -1, 2**31 - 1) if column.type == pa.int32() else (0, -1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
    value = rng.choice(odd)
    return _overwrite(path, column.name, value, rng.choice((0.001, 1.0)))


def odd_reals(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng, ["train_steps", "deliveries"])
    column = _any_column(path, rng, pa.float64())
    return _overwrite(path, column, rng.choice((float("nan"), float("inf"), -1e308, 1e308)), 1.0)


def other_year(folder: Path, rng: random.Random) -> tuple[str, ...]:
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
    return _about(path)


def turned_times(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng, [table for table, (first, last) in TIMES.items() if first != last])
    first, last = TIMES[path.parent.name]

    def change(rows: pa.Table) -> pa.Table:
        starts, ends = rows[first].to_pylist(), rows[last].to_pylist()
        return _with_values(_with_values(rows, first, ends), last, starts)

    rewrite(path, change)
    return _about(path)


def odd_versions(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng, ["samples"])
    odd: list[Any] = [
        [],
        [{"version": 2**40, "start": 0, "end": 1}],
        [{"version": -(2**63), "start": 0, "end": 1}],
        [{"version": 1, "start": 5, "end": 1}],
        [{"version": each, "start": each, "end": each + 1} for each in range(20_000)],
        [{"version": 0, "start": -(2**31), "end": 2**31 - 1}],
    ]
    return _overwrite(path, "versions", rng.choice(odd), 0.0)


def shadow_column(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = _any_closed(folder, rng)
    column = rng.choice(TABLES[path.parent.name]).name

    def change(rows: pa.Table) -> pa.Table:
        return rows.append_column(column.upper(), pa.array([None] * rows.num_rows, rows.schema.field(column).type))

    rewrite(path, change)
    return _about(path)


def other_column(folder: Path, rng: random.Random) -> tuple[str, ...]:
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
    return (*_about(path), column, *missed)


def remove_worker(folder: Path, rng: random.Random) -> tuple[str, ...]:
    path = rng.choice(sorted((folder / "workers").glob("*.json")))
    path.unlink()
    return (path.stem, "worker file")


def odd_worker(folder: Path, rng: random.Random) -> tuple[str, ...]:
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
    return (path.stem, "dropped", "Capture dropped")


def broken_json(folder: Path, rng: random.Random) -> tuple[str, ...]:
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
    return (path.name, path.stem)


def odd_setting(folder: Path, rng: random.Random) -> tuple[str, ...]:
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
    return ("run.json",)


def odd_manifest(folder: Path, rng: random.Random) -> tuple[str, ...]:
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
    return ("run.json", "samples of run", "run '")


KINDS: Final[Mapping[str, Apply]] = {
    "remove_file": remove_file, "remove_table": remove_table, "copy_file": copy_file, "rename_file": rename_file,
    "swap_files": swap_files, "cut_file": _of_bytes(lambda content, rng: content[: rng.randrange(len(content))]),
    "move_batch": move_batch,
    "append_to_file": _of_bytes(lambda content, rng: content + rng.randbytes(rng.choice((1, 8, 4096)))),
    "odd_file": odd_file, "odd_folder": odd_folder, "repeat_rows": repeat_rows, "remove_rows": remove_rows,
    "null_values": null_values, "unknown_words": unknown_words, "long_text": long_text,
    "shadow_column": shadow_column, "other_column": other_column, "other_year": other_year,
    "turned_times": turned_times, "remove_worker": remove_worker, "odd_worker": odd_worker,
    "broken_json": broken_json, "odd_setting": odd_setting, "odd_manifest": odd_manifest,
}  # fmt: skip
KINDS_THAT_CHECKSUMS_SHOW: Final[Mapping[str, Apply]] = {
    "flip_bits": _of_bytes(_flipped), "blank_file": _of_bytes(_zeroed), "hostile_text": hostile_text,
    "odd_numbers": odd_numbers, "odd_reals": odd_reals, "odd_versions": odd_versions,
}  # fmt: skip
STATEMENTS: Final = ("odd_worker", "odd_setting", "odd_manifest")
"""Kinds that nothing can contradict."""
