"""A recorded run that is written again flush by flush, each late by any time within a bound."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rlscope_otel.schema import TIMES

from rlscope.alerts.metrics import METRICS
from rlscope.alerts.types import RuleSet, RuleWindow
from rlscope.trace.journals import fitted
from tests.alerts.given import S, rule
from tests.journals import append_table, close

FLUSH_NS = 3 * S


def every_rule(interval_ns: int) -> RuleSet:
    """Every metric that is known live, with thresholds that some of its windows are beyond and some not."""
    rules = [
        rule(
            f"{metric.name} {threshold}",
            metric.name,
            threshold,
            RuleWindow(None, 4) if index % 3 == 0 else RuleWindow((index % 4 + 1) * interval_ns),
            for_ns=index % 2 * interval_ns,
            keep_firing_for_ns=index % 5 * interval_ns,
            kind="data_quality" if metric.name == "worker.silent_s" else "hint" if index % 4 else "alarm",
            min_evidence=None if threshold in (0.4, 6.0) else 1,
            annotations={"summary": "{value}, {worst}, {worker}"},
        )
        for index, metric in enumerate(metric for metric in METRICS if metric.is_live)
        for threshold in (0.05, 0.4, 1.3, 6.0, 40.0)
    ]
    return RuleSet(tuple(rules), interval_ns, warm_up_steps=2)


class Growing:
    """Appends the flushes of a run to journals, and now and then puts a Parquet file in the place of one."""

    def __init__(self, run: Path, folder: Path, seed: int, most_late_ns: int) -> None:
        """Begin with the run's and the workers' own files. A worker writes one flush of a table after the other."""
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns("*.parquet"))
        self.start_ns: int = (manifest := json.loads((run / "run.json").read_text()))["created_ns"]
        self._folder, self._run_id, self._rng = folder, manifest["run_id"], random.Random(seed)
        self._rows, self._closed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self._waiting: list[tuple[int, str, str, pa.Table]] = []
        for path in sorted(run.glob("*/*.parquet")):
            table, worker_id = path.parent.name, path.stem.rpartition("-")[0]
            first = TIMES[table][0]
            rows, arrives_ns = fitted(pq.read_table(path), table).sort_by(first), 0
            flushes = rows[first].to_numpy() // FLUSH_NS
            for flush in sorted(set(flushes.tolist())):
                own = rows.filter(pa.array(flushes == flush))
                arrives_ns = max(arrives_ns, own[first][0].as_py() + int(self._rng.random() * most_late_ns))
                self._waiting.append((arrives_ns, table, worker_id, own))
        self._waiting.sort(key=lambda flush: flush[0])

    def write_until(self, now_ns: int) -> None:
        """Append what arrives up to a time."""
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, *own, rows = self._waiting.pop(0)
            table, worker_id = place = own[0], own[1]
            first_row, number = self._rows[place], self._closed[place] + 1
            self._rows[place] += rows.num_rows
            journal = append_table(
                self._folder, rows, worker_id, table, first_row=first_row, number=number, run_id=self._run_id
            )
            if self._rng.random() < 0.3:
                close(journal, keep=self._rng.random() < 0.3)
                self._closed[place] += 1
