"""Capture hooks: per-token policy versions, batch-size timelines and idle spans to Parquet."""

from rlscope_otel.clock import ManualClock
from rlscope_otel.errors import SetupError
from rlscope_otel.phases import Phase, TrainStep, WeightUpdate
from rlscope_otel.recorder import Run
from rlscope_otel.samples import Sample
from rlscope_otel.start import start_run

__all__ = ["ManualClock", "Phase", "Run", "Sample", "SetupError", "TrainStep", "WeightUpdate", "start_run"]
