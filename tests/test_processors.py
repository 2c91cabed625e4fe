"""The answer about a run does not depend on the processor that computes it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.kept import TRACES
from tests.nightly import nightly

PRINT_CARD: Final = "import sys, rlscope; print(rlscope.analyze(sys.argv[1]).to_markdown())"

CPU: Final = Path("/proc/cpuinfo")
NEEDS_AVX512: Final = pytest.mark.skipif(
    not CPU.exists() or "avx512f" not in CPU.read_text(encoding="utf-8"), reason="this processor has no AVX-512"
)


@cache
def card(trace: str, core: str) -> str:
    """The card of a sample trace, printed by a process whose linear algebra is written for that processor."""
    environment = {**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PRINT_CARD, str(TRACES / trace)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("core", ["Prescott", pytest.param("SkylakeX", marks=[pytest.mark.nightly, NEEDS_AVX512])])
@pytest.mark.parametrize("trace", ["fleet", nightly("starved_trainer_after"), nightly("capped_staleness")])
def test_every_digit_of_a_card_is_the_same_on_every_processor(trace: str, core: str) -> None:
    assert card(trace, core) == card(trace, "Haswell")
