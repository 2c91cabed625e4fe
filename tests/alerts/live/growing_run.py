"""A small run of two trainers and two engines, made of a seed, that can be written flush by flush."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from rlscope_otel.schema import TIMES

from rlscope.alerts.metrics import METRICS
from rlscope.alerts.types import Rule, RuleSet, RuleWindow
from tests.alerts.given import S, rule
from tests.journals import append_table, close
from tests.trace_folder import (
    Row,
    activity,
    delivery_row,
    engine_row,
    queue_row,
    sample_row,
    train_row,
    update_row,
    worker,
    write_rows,
    write_run,
)

TRAINERS = ("t0", "t1")
ENGINES = ("e0", "e1")
END_S = 150
FLUSH_S = 15


def every_rule(interval_ns: int) -> RuleSet:
    """Every metric that is known live, with thresholds that some of its windows are beyond and some not."""
    rules: list[Rule] = []
    for index, metric in enumerate(metric for metric in METRICS if metric.is_live):
        for threshold in (0.05, 0.4, 1.3, 6.0, 40.0):
            window = RuleWindow(None, 4) if index % 3 == 0 else RuleWindow((index % 4 + 1) * interval_ns)
            usual = threshold in (0.4, 6.0)
            each = rule(
                f"{metric.name} {threshold}",
                metric.name,
                threshold,
                window,
                for_ns=index % 2 * interval_ns,
                keep_firing_for_ns=index % 5 * interval_ns,
                kind="data_quality" if metric.name == "worker.silent_s" else "hint" if index % 4 else "alarm",
                min_evidence=None if usual else 1,
                annotations={"summary": "{value}, {worst}, {worker}"},
            )
            rules.append(each)
    return RuleSet(tuple(rules), interval_ns, warm_up_steps=2)


def make_run(folder: Path, seed: int) -> Path:
    """The whole run, in files as a flush every FLUSH_S writes them; one engine is killed, one worker dropped rows."""
    rng = random.Random(seed)
    tables: dict[str, list[Row]] = {
        "activities": [], "train_steps": [], "weight_updates": [], "engine_steps": [], "samples": [],
        "deliveries": [], "queue_depths": [],
    }  # fmt: skip
    _train(rng, tables)
    killed_s = rng.randint(90, 130)
    for engine in ENGINES:
        _generate(rng, tables, engine, END_S if engine == "e0" else killed_s)
    write_run(folder, [], {"max_staleness": 2})
    counts = _write_flushes(folder, tables)
    for name in (*TRAINERS, *ENGINES):
        role = "trainer" if name in TRAINERS else "sampler"
        more = {"stop_ns": None, "last_flush_ns": killed_s * S} if name == "e1" else {"stop_ns": END_S * S}
        kept = {"rows": counts[name], "dropped": {"samples": 2 if name == "t1" else 0}}
        document = worker(name, role, 0, gpu_count=2, kv_capacity_tokens=900, **more, **kept)  # type: ignore[arg-type]
        (folder / "workers" / f"{name}.json").write_text(json.dumps(document))
    return folder


def arrivals(run: Path, seed: int, most_late_ns: int) -> list[tuple[int, Path]]:
    """When each flush is written, UTC epoch: its first moment and anything less than most_late_ns; in that order.

    A worker writes one flush of a table after the other.
    """
    rng = random.Random(seed)
    found: list[tuple[int, Path]] = []
    before: dict[str, int] = {}
    for path in sorted(run.glob("*/*.parquet")):
        first_ns = min(pq.read_table(path)[TIMES[path.parent.name][0]].to_pylist())
        journal = str(path).rpartition("-")[0]
        before[journal] = max(before.get(journal, 0), first_ns + int(rng.random() * most_late_ns))
        found.append((before[journal], path))
    return sorted(found)


def copy_all_but_tables(run: Path, folder: Path) -> None:
    """The run's and the workers' own files."""
    folder.mkdir(parents=True)
    shutil.copy(run / "run.json", folder)
    shutil.copytree(run / "workers", folder / "workers")


class Journals:
    """Appends the flushes of a run to journals, and now and then puts a Parquet file in the place of one."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._rows: Counter[tuple[str, str]] = Counter()
        self._closed: Counter[tuple[str, str]] = Counter()

    def append(self, path: Path) -> None:
        """Append the rows of a file with one flush."""
        rows, table, worker_id = pq.read_table(path), path.parent.name, path.stem.rpartition("-")[0]
        own = table, worker_id
        number = self._closed[own] + 1
        journal = append_table(self._folder, rows, worker_id, table, first_row=self._rows[own], number=number)
        self._rows[own] += rows.num_rows
        if self._rng.random() < 0.3:
            close(journal, keep=self._rng.random() < 0.3)
            self._closed[own] += 1


def _train(rng: random.Random, tables: dict[str, list[Row]]) -> None:
    at_s, step = 3.0, 0
    while at_s < END_S - 12:
        step += 1
        wait_s, train_s = rng.choice((0.0, 1.0, 6.0)), rng.uniform(2, 7)
        for trainer in TRAINERS:
            begin = int((at_s + wait_s) * S)
            if wait_s:
                tables["activities"].append(activity(trainer, int(at_s * S), begin, "wait", "samples"))
            end = begin + int((train_s + rng.random()) * S)
            row = train_row(trainer, begin, end, step, tokens=rng.randint(1, 2), version_in=step - 1, version_out=step)
            tables["train_steps"].append(row)
        for index in range(rng.randint(1, 4)):
            name, age = f"s{step}-{index}", rng.randint(0, min(step - 1, 5))
            taken = int((at_s + wait_s) * S)
            finished = max(1, taken - int(rng.random() * 4 * S))
            runs = [(step - 1 - age, 0, rng.randint(1, 9))]
            engine = rng.choice(ENGINES) if at_s < 85 else "e0"
            tables["samples"].append(sample_row(name, engine, runs, started_ns=0, finished_ns=finished))
            outcome = rng.choice(("trained", "trained", "trained", "dropped_stale"))
            tables["deliveries"].append(delivery_row(name, "t0", outcome, taken_ns=taken, step=step))
        tables["queue_depths"].append(queue_row("t0", int(at_s * S), rng.randint(0, 8), capacity=8))
        at_s += wait_s + train_s + 1.2
        published = int(at_s * S)
        tables["weight_updates"].append(update_row("t0", published - S // 5, published, step, "publish"))
        for engine in ENGINES if at_s < 85 else ENGINES[:1]:
            applied = published + int(rng.random() * S)
            tables["weight_updates"].append(update_row(engine, applied, applied + S // 4, step, paused=True))


def _generate(rng: random.Random, tables: dict[str, list[Row]], engine: str, end_s: int) -> None:
    at_ns = S // 2
    while at_ns < (end_s - 2) * S:
        if rng.random() < 0.1:
            until_ns = at_ns + int(rng.uniform(1, 8) * S)
            tables["activities"].append(activity(engine, at_ns, min(until_ns, end_s * S), "wait", "requests"))
            at_ns = until_ns
            continue
        length_ns = int(rng.uniform(0.2, 1) * S)
        load = {"running": rng.randint(1, 64), "waiting": rng.randint(0, 4), "kv_used_tokens": rng.randint(1, 900)}
        tables["engine_steps"].append(engine_row(engine, at_ns, at_ns + length_ns, length_ns // 2, **load))
        at_ns += length_ns


def _write_flushes(folder: Path, tables: dict[str, list[Row]]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {name: {} for name in (*TRAINERS, *ENGINES)}
    for table, rows in tables.items():
        flushes: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            flushes.setdefault((row["worker_id"], row[TIMES[table][1]] // (FLUSH_S * S)), []).append(row)
        sequences = dict.fromkeys(counts, 0)
        for name, flush in sorted(flushes):
            sequences[name] += 1
            write_rows(folder, table, name, flushes[name, flush], sequences[name])
            counts[name][table] = counts[name].get(table, 0) + len(flushes[name, flush])
    return counts
