"""What cannot be in a row is found in memory as it is in files, and that row alone is left out."""

from typing import Any

import pytest

from rlscope.trace.footers import LONGEST_TEXT_BYTES
from rlscope.trace.journals import possible_rows
from tests.trace_folder import engine_row, sample_row, table_of


@pytest.mark.parametrize(
    ("changed", "is_possible"),
    [
        ({}, True),
        ({"versions": [{"version": -(2**63), "start": 0, "end": 1}]}, False),
        ({"versions": [{"version": 2**31, "start": 0, "end": 1}]}, True),
        ({"versions": [{"version": 2**31 + 1, "start": 0, "end": 1}]}, False),
        ({"versions": [{"version": None, "start": 0, "end": 1}]}, False),
        ({"versions": [None]}, False),
        ({"versions": []}, True),
        ({"versions": [{"version": 1, "start": 0, "end": 1}] * 10_000}, True),
        ({"versions": [{"version": 1, "start": 0, "end": 1}] * 10_001}, False),
        ({"group_id": "x" * LONGEST_TEXT_BYTES}, True),
        ({"group_id": "x" * (LONGEST_TEXT_BYTES + 1)}, False),
        ({"group_id": None}, True),
        ({"output_tokens": -1}, False),
        ({"finished_ns": 2**62}, True),
        ({"finished_ns": 2**62 + 1}, False),
    ],
)
def test_a_sample_that_cannot_be_is_left_out_alone(changed: dict[str, Any], is_possible: bool) -> None:
    sound = dict(sample_row("a", "e0", [(0, 0, 1)]))
    rows, left_out = possible_rows(
        table_of("samples", [sound, {**sound, "sample_id": "b", **changed}, sound]), "samples"
    )
    assert rows["sample_id"].to_pylist() == (["a", "b", "a"] if is_possible else ["a", "a"])
    assert left_out == 3 - rows.num_rows


def test_rows_in_order_are_the_very_same() -> None:
    rows = table_of("engine_steps", [engine_row("e0", 0, 1)])
    assert possible_rows(rows, "engine_steps") == (rows, 0)
    empty = rows.slice(0, 0)
    assert possible_rows(empty, "engine_steps") == (empty, 0)
