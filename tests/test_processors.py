"""An analysis in a process of its own: the same digits on every processor, and no library that it hardly needs."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.kept import TRACES, analysis_of
from tests.nightly import nightly

PROGRAM: Final = """import sys, rlscope, rlscope.reports.card, rlscope.reports.terminal
print(rlscope.analyze(sys.argv[1], page=False).to_markdown(), "loaded:", *sys.modules)"""
NOT_NEEDED: Final = {"pandas", "altair", "vl_convert", "jinja2", "opentelemetry", "psutil"}

CPU: Final = Path("/proc/cpuinfo")
NEEDS_AVX512: Final = pytest.mark.skipif(
    not CPU.exists() or "avx512f" not in CPU.read_text(encoding="utf-8"), reason="this processor has no AVX-512"
)


class Ended(NamedTuple):
    """What a process printed, and the libraries that it loaded."""

    card: str
    loaded: frozenset[str]


@cache
def analyzed_on(trace: str, core: str) -> Ended:
    """A sample trace, analyzed by a process whose linear algebra is written for that processor."""
    environment = {**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(TRACES / trace)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    card, _, loaded = done.stdout.rpartition(" loaded: ")
    return Ended(card, frozenset(name.partition(".")[0] for name in loaded.split()))


@pytest.mark.parametrize(
    "core", ["Prescott", nightly("Haswell"), pytest.param("SkylakeX", marks=[pytest.mark.nightly, NEEDS_AVX512])]
)
@pytest.mark.parametrize("trace", ["vllm_trl", nightly("fleet"), nightly("capped_staleness")])
def test_every_digit_of_a_card_is_the_same_on_every_processor(trace: str, core: str) -> None:
    assert analyzed_on(trace, core).card == analysis_of(trace).to_markdown()


def test_an_analysis_loads_no_library_that_it_hardly_needs() -> None:
    loaded = analyzed_on("vllm_trl", "Prescott").loaded
    assert "polars" in loaded and not NOT_NEEDED & loaded
