"""Which pictures the page holds: each with its question, how to read it, the frame it draws and why that may be empty.

Every figure comes with its numbers as a table, which is what a reader without the picture gets.
"""

# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
from collections.abc import Callable
from typing import Final, NamedTuple

import polars as pl

from rlscope.analysis import Analysis, RunFacts
from rlscope.report import numbers
from rlscope.report.charts import ledger, sampling, training
from rlscope.report.charts.encoding import Chart, spec
from rlscope.report.series import MARKS_MAX, drawable
from rlscope.report.states import reason_label, role_order, state_of

TABLE_ROWS_MAX: Final = 120
_UNITS: Final = ("tokens_per_s", "tokens", "samples", "s")


class Figure(NamedTuple):
    """One picture of the page."""

    title: str
    reading: str
    frame: str
    """The answer that it draws."""
    needs: str
    """The column without which there is nothing to see."""
    draw: Callable[[pl.DataFrame, RunFacts], Chart]
    empty: str
    """Why there may be no data."""
    wide: bool = False


class Drawn(NamedTuple):
    """A figure as the page takes it; without a spec there was nothing to draw."""

    anchor: str
    figure: Figure
    spec: str | None
    columns: list[str]
    rows: list[list[str]]
    rows_note: str
    picture_note: str = ""


_ENGINE_EMPTY: Final = "no engine wrote engine steps"

THROUGHPUT: Final = (
    Figure(
        "Tokens per second",
        "Trained tokens against generated ones. Where generated stays above trained, work piles up or is dropped. "
        "The shaded stretch is the stable one that the steady rate is taken over.",
        "throughput", "trained_tokens_per_s", training.throughput, "no sample was trained on",
    ),
    Figure(
        "Step time",
        "From the end of one training step to the end of the next, and the part of it that computes. The rest is "
        "waiting, publishing and everything else between steps.",
        "training_steps", "compute_s", training.step_time, "no training step was recorded",
    ),
)  # fmt: skip
STALENESS: Final = (
    Figure(
        "Staleness by step",
        "The line is the mean over trained tokens; the band goes from the median to the 95th percentile.",
        "token_staleness_by_step", "staleness_mean", training.staleness_by_step,
        "no trained token has a known version",
    ),
    Figure(
        "Staleness of trained tokens",
        "How many tokens were trained at which age. Tokens beyond the cap are in the cap's colour.",
        "staleness_histogram", "tokens", training.staleness_histogram, "no trained token has a known version",
    ),
)  # fmt: skip
ENGINES: Final = (
    Figure(
        "Running requests",
        "The batch of every engine, averaged over time. Low and level: too few requests arrive. Saw teeth down to "
        "zero: engines drain, by a barrier or by weight updates.",
        "batch_size", "running_mean", sampling.batch_size, _ENGINE_EMPTY,
    ),
    Figure(
        "Requests that wait in the engine",
        "Above zero, the engine has more to do than fits: more engines, or more KV cache, would help.",
        "waiting_requests", "waiting_mean", sampling.waiting_requests, _ENGINE_EMPTY,
    ),
    Figure(
        "KV cache in use",
        "Tokens held in the KV cache. Near the capacity, requests are preempted or wait.",
        "kv_use", "kv_used_mean_tokens", sampling.kv_use, "no engine reported kv_used_tokens",
    ),
    Figure(
        "Time of a forward pass by batch size",
        "While this is flat, a larger batch costs nearly nothing; where it climbs in a straight line, it is paid for.",
        "pass_latency", "pass_mean_s", sampling.pass_latency, _ENGINE_EMPTY,
    ),
)  # fmt: skip
SAMPLES: Final = (
    Figure(
        "Queue depth",
        "Samples that are finished and not yet taken. Empty: samplers are the slower side. Full: trainers are.",
        "queue_depth", "depth_mean_samples", sampling.queue_depth, "the run does not report queue depths",
    ),
    Figure(
        "What became of the tokens",
        "Tokens by the outcome of their sample's delivery.",
        "delivery_outcomes", "tokens", sampling.delivery_outcomes, "no delivery was recorded",
    ),
    Figure(
        "Response lengths",
        "Capped samples hit the length limit. Censored ones were aborted or still running: they are longer than they "
        "look.",
        "response_lengths", "length_from_tokens", sampling.response_lengths, "no sample was recorded",
    ),
)  # fmt: skip
WEIGHT_UPDATES: Final = (
    Figure(
        "From publication to use",
        "For every version and engine, the time from the start of its publication until the engine runs it.",
        "weight_update_latency", "publish_to_applied_s", training.weight_update_latency,
        "no engine recorded applying a published version", True,
    ),
)  # fmt: skip


def drawn(figure: Figure, analysis: Analysis) -> Drawn:
    """The figure with the run's data."""
    frame = analysis.answers.get(figure.frame)
    return drawn_frame(figure, "figure-" + figure.frame.replace("_", "-"), frame, analysis.run)


def drawn_ledger(analysis: Analysis) -> list[Drawn]:
    """The ledger of every role over time."""
    frame = analysis.answers.get("ledger_timeline")
    roles = [] if frame is None or frame.is_empty() else sorted(frame["role"].unique(), key=role_order)
    pictures: list[Drawn] = []
    for number, role in enumerate(roles):
        figure = _TIMELINE._replace(title=f"{role.capitalize()} over time")
        rows = None if frame is None else frame.filter(pl.col("role") == role)
        pictures.append(drawn_frame(figure, f"figure-timeline-{number}", rows, analysis.run))
    return pictures or [drawn_frame(_TIMELINE, "figure-timeline", None, analysis.run)]


def drawn_total(analysis: Analysis) -> Drawn:
    """The whole ledger as one bar per role."""
    schema = {
        "role": pl.String,
        "state": pl.String,
        "reason": pl.String,
        "gpu_s": pl.Float64,
        "share_ratio": pl.Float64,
    }
    rows = [(s.role, s.state, s.reason, s.gpu_s, s.share_ratio) for s in analysis.ledger.states if s.gpu_ns > 0]
    rows.sort(key=lambda row: role_order(row[0]))
    return drawn_frame(_TOTAL, "figure-ledger", pl.DataFrame(rows, schema=schema, orient="row"), analysis.run)


_TIMELINE: Final = Figure(
    "Over time",
    "Stacked up to the number of GPUs of the role; colours as in the table above.",
    "ledger_timeline", "gpu_s", ledger.ledger_timeline, "no worker with a GPU wrote anything", True,
)  # fmt: skip
_TOTAL: Final = Figure(
    "Whole run by role",
    "Every GPU-second of a role is in exactly one state.",
    "ledger", "gpu_s", ledger.ledger_total, "no worker with a GPU wrote anything", True,
)  # fmt: skip


def drawn_frame(figure: Figure, anchor: str, frame: pl.DataFrame | None, run: RunFacts) -> Drawn:
    """The figure with a frame, which may have nothing in it."""
    if frame is None or frame.is_empty() or frame[figure.needs].null_count() == frame.height:
        return Drawn(anchor, figure, None, [], [], "")
    picture = spec(figure.draw(frame, run), anchor, f"{figure.title}. {figure.reading}")
    table = drawable(frame, run.started_ns, TABLE_ROWS_MAX)
    note = "" if table.height == frame.height else f"{numbers.count(frame.height)} rows, put together for this table."
    if table.height > TABLE_ROWS_MAX:
        note = f"{numbers.count(TABLE_ROWS_MAX)} of {numbers.count(table.height)} rows are shown."
        table = table.head(TABLE_ROWS_MAX)
    rows = [[_cell(name, value) for name, value in zip(table.columns, row, strict=True)] for row in table.iter_rows()]
    coarse = (
        f"Drawn from {numbers.count(frame.height)} rows, put together in equal stretches by their mean; maxima and "
        "latencies by their largest."
    )
    headings = [_heading(name) for name in table.columns]
    return Drawn(anchor, figure, picture, headings, rows, note, coarse if frame.height > MARKS_MAX else "")


def _heading(column: str) -> str:
    """The column's name with its unit apart."""
    unit = next((unit for unit in _UNITS if column.endswith("_" + unit)), None)
    if unit is None:
        return column.removesuffix("_ratio").replace("_", " ")
    return f"{column.removesuffix('_' + unit).replace('_', ' ')} ({unit.replace('_per_', '/').replace('_', ' ')})"


def _cell(column: str, value: object) -> str:
    """A value without its unit, which the heading has."""
    if value is None:
        return "–" if column == "reason" else numbers.NO_DATA
    if column in ("state", "reason"):
        return state_of(str(value)).label if column == "state" else reason_label(str(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return numbers.percent(value) if column.endswith("_ratio") else numbers.significant(value, 4)
    return str(value)
