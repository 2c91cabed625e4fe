# Polars names numpy in its signatures, and numpy is not installed: hence the unknown member types.
# pyright: reportUnknownMemberType=false
"""The alert rules that fired as marks over time: a row for each of the gravest, a mark for each of its firings.

Where the rows lie in a picture is the chart's business; no picture is made here.
"""

from typing import Final, NamedTuple

import polars as pl

from rlscope.alerts.alert import Severity
from rlscope.alerts.wording import written
from rlscope.analysis import Analysis
from rlscope.report.fired import fired_built_in

ROWS_MAX: Final = 4
"""More would push the lanes off the screen; those that are left out are counted, and listed with the alerts."""
_FIRINGS: Final = {
    "row": pl.Int64,
    "severity": pl.String,
    "rule": pl.String,
    "from_s": pl.Float64,
    "to_s": pl.Float64,
    "value": pl.String,
}


class Firings(NamedTuple):
    """What fired within a stretch of the run."""

    all: pl.DataFrame
    """A row per firing: row (0 for the gravest rule), severity, rule, from_s and to_s since the run started, value."""

    @property
    def drawn(self) -> pl.DataFrame:
        """Those of the rules that have a row in a picture."""
        return self.all.filter(pl.col("row") < ROWS_MAX)

    @property
    def rules_left_out(self) -> int:
        """How many rules that fired have no row."""
        return max(0, self.all["row"].n_unique() - ROWS_MAX)


def firings_in(analysis: Analysis, stretch_s: tuple[float, float]) -> Firings:
    """The firings that a stretch of the run sees some of, in seconds since it started; the gravest rules first."""
    rows, found = dict[str, int](), list[tuple[int, Severity, str, float, float, str]]()
    for rule, alert in fired_built_in(analysis):
        from_s, to_s = (_since_start(analysis, instant_ns) for instant_ns in (alert.start_ns, alert.end_ns))
        if from_s <= stretch_s[1] and to_s >= stretch_s[0]:
            row = rows.setdefault(rule.name, len(rows))
            found.append((row, alert.severity, alert.rule, from_s, to_s, written(rule, alert.value)))
    return Firings(pl.DataFrame(found, schema=_FIRINGS, orient="row"))


def lanes_and_firings(lanes: pl.DataFrame, firings: Firings) -> pl.DataFrame:
    """The table of the lanes, with the firings below them where there are any."""
    if firings.all.is_empty():
        return lanes
    rows = firings.all.select(pl.col("rule").alias("alert"), "severity", "value", "from_s", "to_s")
    return pl.concat([lanes, rows], how="diagonal")


def _since_start(analysis: Analysis, instant_ns: int | None) -> float:
    """Within the run: the tick that begins or ends a firing may be an instant after its end, which None stands for."""
    run = analysis.run
    return run.duration_s if instant_ns is None else min((instant_ns - run.started_ns) / 1e9, run.duration_s)
