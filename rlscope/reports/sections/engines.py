"""Running requests, waiting requests and KV cache of the engines over time."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, SteadyWindow
from rlscope.reports.blocks import Block, Charts, Fold, Paragraph, Table
from rlscope.reports.charts import engines
from rlscope.reports.charts.colors import INK
from rlscope.reports.charts.encoding import LINES_MAX
from rlscope.reports.figure import Figure, drawn_frame

_NO_STEPS: Final = "no engine wrote engine steps"
_AT_LIMIT_RATIO: Final = 0.95
"""Share of the limit from which a mean batch counts as limited by it."""
_FULL_RATIO: Final = 0.9
"""Share of a KV cache from which engines hold requests back, because a running request still grows."""
_FLAT_RATIO: Final = 0.98
"""Share of the limit from which an engine counts as running its limit."""
_FLAT_SHARE_RATIO: Final = 0.99
"""Share of the steady state at the limit from which a chart shows only a flat line."""
_KV_RATIO: Final = pl.col("kv_used_mean_tokens") / pl.col("kv_capacity_tokens")
_LEAST_ENGINES: Final = 2
_ENGINES_SHOWN: Final = 12
_NAMED: Final = 3
"""Engines with a line of their own if there are too many for a line each."""


def engines_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section; the charts fold if they would show flat lines."""
    answers, model = analysis.answers, analysis.modeled
    limit = analysis.run.integer_setting("max_running") if model is None else model.forecasts.today.layout.max_running
    efficient = model and model.efficiency and model.efficiency.efficient_running
    frame, window = answers["batch_size"], analysis.run.window
    means = frame.group_by("worker_id").agg(running=pl.col("running_mean").mean())
    emptiest = means.sort("running", "worker_id")["worker_id"].to_list()
    named, note = emptiest, list[Paragraph]()
    if len(emptiest) > LINES_MAX:
        low, high = (fmt.count(round(10 * quantile)) for quantile in engines.MIDDLE)
        said = (
            f"{fmt.count(len(emptiest))} engines: their median, a band from decile {low} to decile {high}, and a line "
            f"for each of the {fmt.count(_NAMED)} with the smallest mean batch."
        )
        named, note = emptiest[:_NAMED], [Paragraph(said, "note")]
    waits = _known(answers["waiting_requests"], "waiting_mean")
    shows_waits = waits is None or bool((waits > 0).any())
    figures = [each for each in _figures(efficient, sorted(named)) if shows_waits or each.name != "waiting_requests"]
    charts = [drawn_frame(figure, answers[figure.name], analysis.run) for figure in figures]
    each = engine_table(answers)
    said = batch_sentence(answers, limit, efficient, window)
    lead = [Paragraph(said, "lead")] if said else []
    if is_flat(frame, limit, window):
        title = "Running requests, waiting requests and KV cache over time"
        return [*lead, *each, Fold("engines-more", title, [*note, Charts(charts)])]
    *over_time, cache = charts
    return [*lead, *note, Charts(over_time), *each, Fold("engines-more", cache.figure.title, [cache])]


def engine_table(answers: Mapping[str, pl.DataFrame]) -> list[Table | Paragraph]:
    """Return a table of the engines, the slowest first; empty for fewer than two."""
    speeds = answers["engine_speed"]
    if speeds.height < _LEAST_ENGINES:
        return []
    rows = _engine_rows(speeds, answers)
    shown, median = rows.head(_ENGINES_SHOWN), float(speeds["tokens_per_s"].median() or 0.0)  # pyright: ignore[reportArgumentType]
    cells = [_engine_cells(row, median) for row in shown.iter_rows(named=True)]
    table = Table("Engines", [*cells[0]], [[*each.values()] for each in cells], "stacks")
    if shown.height == rows.height:
        return [table]
    return [table, Paragraph(f"The {fmt.count(shown.height)} slowest of {fmt.count(rows.height)} engines.", "note")]


def _engine_rows(speeds: pl.DataFrame, answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return engine_speed with time, KV cache, preemptions, version lag and dropped samples, by engine."""
    counted = pl.when(pl.col("preemptions").is_not_null().any()).then(pl.col("preemptions").sum())
    columns = {
        "worker_extents": {"extent_s": (pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9},
        "kv_use": {"kv_ratio": _KV_RATIO.max(), "preemptions": counted},
        "weight_update_latency": {"lag_s": pl.col("publish_to_applied_s").mean()},
        "engine_deliveries": {"samples": pl.col("samples").sum(), "dropped": pl.col("dropped").sum()},
    }
    for name, of_engine in columns.items():
        by_engine = answers[name].group_by("worker_id").agg(**of_engine)
        speeds = speeds.join(by_engine, on="worker_id", how="left")
    return speeds.sort("tokens_per_s", "worker_id")


def _engine_cells(row: Mapping[str, Any], median_tokens_per_s: float) -> dict[str, str]:
    rate, extent_s = row["tokens_per_s"], row["extent_s"]
    versus = rate / median_tokens_per_s - 1.0 if rate and median_tokens_per_s else None
    return {
        "engine": row["worker_id"],
        "decoding speed": fmt.tokens_per_second(rate),
        "vs. median": fmt.signed_percent(versus),
        "running": fmt.significant(row["running_mean"]),
        "waiting": fmt.significant(row["waiting_mean"]),
        "peak KV cache": fmt.percent(row["kv_ratio"]),
        "preemptions": fmt.count(row["preemptions"]),
        "time with requests": fmt.percent(row["row_s"] / extent_s if extent_s else None),
        "new weights after": fmt.duration(row["lag_s"]),
        "dropped as stale": fmt.percent(row["dropped"] / row["samples"] if row["samples"] else None),
    }


def batch_sentence(
    answers: Mapping[str, pl.DataFrame], limit: int | None, efficient_running: int | None, window: SteadyWindow | None
) -> str:
    """Say how many requests an engine runs in steady state and what keeps it from more; empty if unknown."""
    running = _known(_inside(answers["batch_size"], window), "running_mean")
    if running is None:
        return ""
    mean, queued = _mean(running), _known(_inside(answers["waiting_requests"], window), "waiting_mean")
    at_limit, place = limit is not None and mean >= _AT_LIMIT_RATIO * limit, ""
    if at_limit:
        place = f", at its limit of {fmt.count(limit)}"
    elif efficient_running is not None:
        side = "at or above" if mean >= efficient_running else "below"
        place = f", {side} the smallest efficient batch of {fmt.count(efficient_running)}"
    waits = 0.0 if queued is None else _mean(queued)
    more = "" if queued is None else f"; {fmt.significant(waits)} more wait" if waits else "; none waits"
    opening = f"An engine runs {fmt.significant(mean)} requests on average{place}{more}."
    shares = _known(answers["kv_use"].select(ratio=_KV_RATIO), "ratio")
    used = None if shares is None else fmt.finite(float(shares.max() or 0.0))  # pyright: ignore[reportArgumentType]
    if used is None:
        return opening
    why = "memory does not hold requests back."
    if used >= _FULL_RATIO:
        why = "more requests would need more memory, or more engines."
    elif at_limit and waits:
        why = "the limit holds requests back, not memory."
    return f"{opening} The KV cache is at most {fmt.percent(used)} full: {why}"


def _mean(column: pl.Series) -> float:
    return float(column.mean() or 0.0)  # pyright: ignore[reportArgumentType]


def is_flat(batches: pl.DataFrame, limit: int | None, window: SteadyWindow | None) -> bool:
    """Return whether every engine runs its limit throughout the steady state, so that a chart shows a flat line."""
    running = _known(_inside(batches, window), "running_mean")
    return running is not None and bool(limit) and _mean(running >= _FLAT_RATIO * limit) >= _FLAT_SHARE_RATIO  # pyright: ignore[reportOptionalOperand]


def _inside(frame: pl.DataFrame, window: SteadyWindow | None) -> pl.DataFrame:
    """Return the rows that begin in steady state; all rows if there is none."""
    if window is None:
        return frame
    return frame.filter(pl.col("bucket_start_ns").is_between(window.start_ns, window.end_ns, closed="left"))


def _known(frame: pl.DataFrame, column: str) -> pl.Series | None:
    known = frame[column].drop_nulls()
    return None if known.is_empty() else known


def _figures(efficient_running: int | None, named: list[str]) -> tuple[Figure, ...]:
    efficient = efficient_running, f"efficient batch {efficient_running}", INK
    draw_batches = partial(
        engines.over_time, column="running_mean", title="running requests", named=named, limit=efficient
    )
    draw_waits = partial(engines.over_time, column="waiting_mean", title="waiting requests", named=named)
    return (
        Figure(
            "Running requests",
            "Batch size of each engine. Constantly low: too few requests arrive. Regular drops: engines drain at a "
            "barrier or for updates. Healthy: steady and high.",
            "batch_size", "running_mean", draw_batches, _NO_STEPS, True,
        ),
        Figure(
            "Waiting requests", "Requests in an engine beyond those that it runs. Healthy: near zero.",
            "waiting_requests", "waiting_mean", draw_waits, _NO_STEPS, True,
        ),
        Figure(
            "KV cache in use",
            "Tokens in the KV cache. Near capacity, requests wait or are preempted. Healthy: below capacity.",
            "kv_use", "kv_used_mean_tokens", partial(engines.kv_use, named=named),
            "no engine reported kv_used_tokens", True,
        ),
    )  # fmt: skip
