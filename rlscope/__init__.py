"""rlscope: find out where the GPU time of an asynchronous RL run goes, how stale its tokens are, and what to change.

    import rlscope

    with rlscope.open("runs/monday") as run:
        run.query("token_staleness_by_step")          # polars; `rlscope queries` lists the queries
        run.sql("SELECT role, count(*) FROM workers GROUP BY role")
    a = rlscope.analyze("runs/monday", max_staleness=4, also=["runs/tuesday"])
    a.verdict, a.recommendation, a.staleness.tokens.p95
    a.what_if(trainer_gpus=4, max_running=64)
    a.charts.ledger()                                 # Altair
    a.to_json(); a.to_markdown(); a.to_html("report.html")

    rlscope.what_if("runs/monday", trainer_speed=2)
    rlscope.plan("plan.toml")
    rlscope.check("runs/monday", fail_if=["staleness.tokens.p95 > 4"]).failed()
    rlscope.compare("runs/monday", "runs/tuesday").to_markdown()
    rlscope.list_runs("runs", sort="tokens_per_s").frame()
    rlscope.push("runs/monday", "tensorboard", folder="logs/monday")
    rlscope.compact("runs/monday", verify=True).files_after
    rlscope.export_perfetto("runs/monday", "monday.pftrace", from_s=600, to_s=900)

Every error that a user can cause is an RlscopeError. Names are imported when they are first used, so `import rlscope`
is fast, and neither `check` nor a query waits for the model or the charts.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlscope.api import (
        Analysis,
        CheckReport,
        Comparison,
        PlanAnswer,
        Run,
        RunList,
        WhatIfAnswer,
        analyze,
        check,
        compact,
        compare,
        doctor,
        export_perfetto,
        list_runs,
        open,
        plan,
        push,
        what_if,
    )
    from rlscope.errors import RlscopeError

__all__ = [
    "Analysis",
    "CheckReport",
    "Comparison",
    "PlanAnswer",
    "RlscopeError",
    "Run",
    "RunList",
    "WhatIfAnswer",
    "analyze",
    "check",
    "compact",
    "compare",
    "doctor",
    "export_perfetto",
    "list_runs",
    "open",
    "plan",
    "push",
    "what_if",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rlscope' has no attribute {name!r}")
    globals()[name] = getattr(import_module("rlscope.errors" if name == "RlscopeError" else "rlscope.api"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return [*__all__]
