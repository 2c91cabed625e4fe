"""GPU time by role and state, for the whole run and over time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block
from rlscope.reports.card import ledger_blocks
from rlscope.reports.charts import ledger
from rlscope.reports.charts.timeline import update_moments
from rlscope.reports.figure import Drawn, Figure, drawn_frame
from rlscope.reports.text.ledger import dropped_of
from rlscope.reports.text.states import role_order


def ledger_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    return [_total(analysis), *ledger_blocks(analysis), *_gpu_use(analysis), *_timelines(analysis)]


def _total(analysis: AnalysisResult) -> Drawn:
    """The ledger as one bar per role."""
    schema = {
        "role": pl.String,
        "state": pl.String,
        "reason": pl.String,
        "gpu_s": pl.Float64,
        "share_ratio": pl.Float64,
    }
    rows = [(s.role, s.state, s.reason, s.gpu_s, s.share_ratio) for s in analysis.ledger.states if s.gpu_ns > 0]
    rows.sort(key=lambda row: role_order(row[0]))
    dropped = dropped_of(analysis)
    said = (
        f"Generation counts as work here, although {fmt.percent(dropped)} of the tokens taken from the queue in "
        "steady state were dropped."
    )
    figure = _TOTAL.saying(said if dropped else "")
    return drawn_frame(figure, pl.DataFrame(rows, schema=schema, orient="row"), analysis.run)


def gpu_use_frame(answers: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    """gpu_agreement by role and state: shares of the time read, weighted by it; None if no GPU was read."""
    read, extents = answers.get("gpu_agreement"), answers.get("worker_extents")
    if read is None or extents is None or read.is_empty():
        return None

    def mean(column: str) -> pl.Expr:
        known_s = pl.col("read_s").filter(pl.col(column).is_not_null()).sum()
        return (pl.col(column) * pl.col("read_s")).sum() / pl.when(known_s > 0).then(known_s)

    rows = read.join(extents.select("worker_id", "role"), on="worker_id").group_by("role", "state")
    frame = rows.agg(
        read_s=pl.col("read_s").sum(), busy_ratio=mean("busy_ratio"), sm_active_ratio=mean("sm_active_ratio")
    )
    return frame.sort("role", "state")


def _gpu_use(analysis: AnalysisResult) -> Iterator[Drawn]:
    frame = gpu_use_frame(analysis.answers)
    if frame is not None:
        yield drawn_frame(_GPU_USE, frame, analysis.run)


def _timelines(analysis: AnalysisResult) -> list[Drawn]:
    """The ledger of every role over time."""
    frame = analysis.answers.get("ledger_timeline")
    roles = [] if frame is None or frame.is_empty() else sorted(frame["role"].unique(), key=role_order)
    pictures: list[Drawn] = []
    updates_s = update_moments(analysis)
    for number, role in enumerate(roles):
        figure = _TIMELINE._replace(title=f"{role.capitalize()} over time", name=f"timeline_{number}")
        rows = None if frame is None else frame.filter(pl.col("role") == role)
        pictures.append(drawn_frame(figure, rows, analysis.run, updates_s))
    return pictures or [drawn_frame(_TIMELINE, None, analysis.run)]


_GPU_USE: Final = Figure(
    "GPU use by state",
    "Bars: share of the time in which a kernel ran. Ticks: mean share of multiprocessors with work. The states of an "
    "engine's passes are read together. Healthy: near 100% in every state of work; a state of work with a short bar "
    "waits on the host.",
    "gpu_use", "read_s", ledger.gpu_use, "no GPU was read", True, ("gpu_agreement", "worker_extents"),
)  # fmt: skip
_TIMELINE: Final = Figure(
    "Over time",
    "Stacked up to the number of GPUs of the role, in the colors of the table above; unattributed time is hatched at "
    "the top. Healthy: work fills the height from start to end, with little waiting or unattributed time.",
    "timeline", "gpu_s", ledger.ledger_timeline, "no worker with a GPU recorded anything", True,
    ("ledger", "worker_extents"),
)  # fmt: skip
_TOTAL: Final = Figure(
    "By role",
    "Every GPU-second of a role is in exactly one state. Healthy: blue and green fill most of each bar.",
    "ledger", "gpu_s", ledger.ledger_total, "no worker with a GPU recorded anything", True,
    ("ledger", "worker_extents", "gpu_agreement"),
)  # fmt: skip
