"""Files of one JSON object a line: `{"step": 1, "data": {...}}` of verl, flat objects, and trainer_state.json.

The step and the time are taken from the names that writers of metrics give them (`step`, `_step`, `time`, `_timestamp`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from rlscope.importers.importer import Progress, Source
from rlscope.importers.rows import Carrier, MetricRow, Tally, parsed_json, read_lines, row_of

_LARGEST_STATE_BYTES: Final = 256 << 20
"""A log_history of a million rows is smaller."""


def _rows(path: Path, tally: Tally, progress: Progress) -> Iterator[MetricRow]:
    for line in read_lines(path, tally, progress):
        if not line.strip():
            continue
        document = parsed_json(line)
        if isinstance(document, dict):
            row = row_of(cast("dict[str, Any]", document))
            if row is not None:
                yield row
        else:
            tally.bad_lines += 1


def _fits(source: Source) -> bool:
    first = source.head.lstrip().split(b"\n", 1)[0].rstrip()
    return source.path.suffix in (".jsonl", ".json") and first.startswith(b"{") and len(first) > 2


def _state_rows(path: Path, tally: Tally, progress: Progress) -> Iterator[MetricRow]:
    """The rows of `log_history`: one JSON document, so a file that is cut off holds none."""
    tally.bytes = path.stat().st_size
    if tally.bytes > _LARGEST_STATE_BYTES:
        tally.bad_lines += 1
        return
    document = parsed_json(path.read_bytes())
    progress(tally.bytes)
    history = document.get("log_history") if isinstance(document, dict) else None
    for each in history if isinstance(history, list) else ():
        tally.lines += 1
        row = row_of(cast("dict[str, Any]", each)) if isinstance(each, dict) else None
        tally.bad_lines += row is None
        if row is not None:
            yield row


def _is_state(source: Source) -> bool:
    return source.path.suffix == ".json" and source.path.name.startswith("trainer_state")


JSONL: Final = Carrier("jsonl", ("metrics.jsonl", "*.jsonl"), _fits, _rows)
TRAINER_STATE: Final = Carrier("trainer_state", ("trainer_state.json",), _is_state, _state_rows)
