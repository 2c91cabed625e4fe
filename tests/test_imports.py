"""What a command does not need, it does not load; the layers themselves are checked by import-linter in `make lint`."""

import subprocess
import sys
from pathlib import Path

import pytest

TRACE = Path(__file__).parent.parent / "sample_traces" / "synchronous"
LIGHT = "rlscope.alerts.offline, rlscope.alerts.live.watch, rlscope.trace.adhoc, rlscope.reports.check"
ANALYSIS = f"rlscope.pipeline; rlscope.pipeline.analyze({str(TRACE)!r})"


@pytest.mark.parametrize(
    ("imported", "loaded", "not_loaded"),
    (
        (LIGHT, "duckdb", {"scipy", "altair", "jinja2"}),
        (ANALYSIS, "polars", {"pandas", "altair", "jinja2", "opentelemetry", "psutil"}),
    ),
    ids=("check, watch and query wait for no model", "an analysis loads no library that it hardly needs"),
)
def test_only_what_is_needed_is_loaded(imported: str, loaded: str, not_loaded: set[str]) -> None:
    program = f"import sys, {imported}; print(*(name.split('.')[0] for name in sys.modules))"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert loaded in modules and not not_loaded & set(modules)
