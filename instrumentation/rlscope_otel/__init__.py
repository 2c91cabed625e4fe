"""Capture hooks: per-token policy versions, batch-size timelines and idle spans to Parquet.

Readers of a run import the schema from here without the libraries that capture needs: the names below are imported when
they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlscope_otel.errors import SetupError
    from rlscope_otel.phases import Phase, TrainStep, WeightUpdate
    from rlscope_otel.recorder import Run
    from rlscope_otel.samples import Sample
    from rlscope_otel.start import start_run

__all__ = ["Phase", "Run", "Sample", "SetupError", "TrainStep", "WeightUpdate", "start_run"]

_MODULES = {
    "Phase": "phases",
    "Run": "recorder",
    "Sample": "samples",
    "SetupError": "errors",
    "TrainStep": "phases",
    "WeightUpdate": "phases",
    "start_run": "start",
}


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
