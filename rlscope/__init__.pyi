# ruff: noqa: I001  # one import per module
"""The public names, and the modules that define them."""

from rlscope.api import (
    analyze as analyze,
    check as check,
    compare as compare,
    doctor as doctor,
    list_runs as list_runs,
    open as open,
    plan as plan,
)
from rlscope.errors import RlscopeError as RlscopeError
from rlscope.exports.perfetto import export_perfetto as export_perfetto
from rlscope.importers.options import import_options as import_options
from rlscope.importers.target import ImportOptions as ImportOptions
from rlscope.reports.check import CheckReport as CheckReport
from rlscope.reports.documents.doctor import DoctorReport as DoctorReport
from rlscope.results import (
    Analysis as Analysis,
    Comparison as Comparison,
    PlanAnswer as PlanAnswer,
    RunList as RunList,
    WhatIfAnswer as WhatIfAnswer,
)
from rlscope.run import Run as Run

__version__: str
