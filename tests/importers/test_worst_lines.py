"""A line that is made to be slow costs no more than any other line of its length."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from rlscope.importers.console import CONSOLE
from rlscope.importers.lines import LONGEST_LINE_BYTES, ConsoleLine, clean
from rlscope.importers.rows import Tally
from tests.importers.test_log_laws import LOGS
from tests.importers.test_steps import ASYNC, verl_line

LENGTH = LONGEST_LINE_BYTES - 1000
MOST_CPU_S = 15.0
"""A quadratic expression takes minutes at the least for such a line; a linear one takes some hundredths of a second."""


def repeated(text: str, end: str = "", start: str = "") -> str:
    return start + text * ((LENGTH - len(start) - len(end)) // len(text.encode())) + end + "\n"


CONSOLE_LINES = {
    "no pair": repeated("a", start="step:1 - a:1 - "),
    "digits": repeated("1", start="step:1 - a:", end="x"),
    "spaces": repeated(" ", start="step:1 - a:1", end="x"),
    "repeats": repeated(" ", start="step:1 - a:1 [repeated ", end="x"),
    "commands": repeated("python,", start="a=1 "),
    "tables": repeated("StatsLogger INFO: "),
    "cells": repeated("1", start="StatsLogger INFO: Train step 1/2 done.\n│ a │ ", end="x│"),
    "blocks": repeated("=== [", end=" - METRICS STEP "),
    "entries": repeated("a/", start="=== [a] - METRICS STEP 1 ===\n"),
}
LINES = {
    "sglang": {
        "no pair": repeated("a", start="[2026-01-01 00:00:00] Decode batch. "),
        "spaces": repeated(" ", start="[2026-01-01 00:00:00] Decode batch. [repeated ", end="x"),
        "stamps": repeated("[00:00:00", start=" Decode batch "),
    },
    "vllm": {"stamps": repeated("INFO 01-01 00:00:00 [")},
    "nemo-rl": {
        "rules": repeated("="),
        "clusters": repeated("'gpus_per_node': 1 ", start="'cluster': {"),
    },
    "skyrl": {"digits": repeated("1", start="'policy_loss': 1, 'a': ", end="x")},
    "slime": {
        "stamps": repeated("[2026-01-01 00:00:00", start="Timer "),
        "facts": repeated("[2026-01-01 00:00:00] a.py:1 - perf 1: {'"),
        "digits": repeated("1", start="[2026-01-01 00:00:00] a.py:1 - perf 1: {'a': ", end="x}"),
    },
}


class TooSlowError(Exception):
    """The CPU time that was allowed is spent."""


@contextmanager
def limited_cpu() -> Generator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("line", CONSOLE_LINES.values(), ids=list(CONSOLE_LINES))
def test_the_slowest_line_of_a_console_is_read_in_time(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.log"
    path.write_text(line + verl_line(1, ASYNC) + line + verl_line(2, ASYNC), encoding="utf-8")
    with limited_cpu():
        rows = list(CONSOLE.rows(path, Tally()))
    assert [row.values for row in rows if "timing_s/step" in row.values] == [ASYNC, ASYNC]


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
def test_the_slowest_line_of_each_importer_is_read_in_time(tmp_path: Path, name: str, line: str) -> None:
    log = LOGS[name]
    with limited_cpu():
        filled = log.fill(tmp_path, LINES[name][line] + log.text())
    assert filled.imported.files


def test_the_suffix_of_ray_s_merging_costs_its_length() -> None:
    with limited_cpu():
        assert clean(repeated(" ", start="a", end="[repeated 3x across cluster]")) == ConsoleLine("a", "", 2)
        assert clean(repeated(" ", end="[repeated 3x across]")).merged == 0
