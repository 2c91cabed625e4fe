"""`backup.swanlab`, which SwanLab writes on the machine of the run: W&B's blocks, with a JSON object as each record."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlscope.importers.quantities import number
from rlscope.importers.rows import (
    Carrier,
    MetricRow,
    Tally,
    begins_with,
    instant_ns,
    joined_by_step,
    mapping,
    parsed_json,
)
from rlscope.importers.wandb import records_of_blocks


def _rows(path: Path, tally: Tally) -> Iterator[MetricRow]:
    return joined_by_step(_scalars(path, tally))


def _scalars(path: Path, tally: Tally) -> Iterator[MetricRow]:
    """Yield each number by itself; other records hold the console, charts and media."""
    for raw in records_of_blocks(path, tally):
        record = mapping(parsed_json(raw))
        data = mapping(record.get("data"))
        metric = mapping(data.get("metric"))
        value, step = number(metric.get("data")), number(data.get("step"))
        if record.get("model_type") == "Scalar" and value is not None and step is not None:
            yield MetricRow(instant_ns(metric.get("create_time")), step, {str(data.get("key")): value})


SWANLAB: Final = Carrier("swanlab", ("*.swanlab",), begins_with(b":SWL"), _rows)
