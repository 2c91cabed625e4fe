"""rlscope: find out where the GPU time of an asynchronous RL run goes, how stale its tokens are, and what to change.

    import rlscope

    with rlscope.open("runs/monday") as run:
        run.query("token_staleness_by_step")          # polars; `rlscope queries` lists the queries
        run.sql("SELECT role, count(*) FROM workers GROUP BY role")
    a = rlscope.analyze("runs/monday", max_staleness=4, also=["runs/tuesday"])
    a.verdict, a.recommendation, a.staleness.tokens.p95
    a.what_if(trainer_gpus=4, max_running=64)
    a.frame("ledger")                                 # polars; also staleness, findings and actions
    a.charts.workers_all()                            # Altair
    a.to_json(); a.to_markdown(); a.to_html("report.html")
    a.push("tensorboard", folder="logs/monday")       # or wandb, mlflow

    rlscope.plan("plan.toml")
    rlscope.check("runs/monday", fail_if=["staleness.tokens.p95 > 4"]).failed()
    rlscope.compare("runs/monday", "runs/tuesday").to_markdown()
    rlscope.list_runs("runs", sort="tokens_per_s").frame()
    rlscope.export_perfetto("runs/monday", "monday.pftrace", from_s=600, to_s=900)

Every error that a user can cause is an RlscopeError. `__init__.pyi` lists the names with their modules, from which they
are imported when they are first used: `import rlscope` is fast, and neither `check` nor a query waits for the model or
the charts.
"""

import ast
from importlib import import_module, metadata
from pathlib import Path

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {
    alias.name: str(node.module) for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names
}
__all__ = [*sorted(_MODULES), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'rlscope' has no attribute {name!r}")
    is_version = name == "__version__"
    globals()[name] = metadata.version("rlscope") if is_version else getattr(import_module(_MODULES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
