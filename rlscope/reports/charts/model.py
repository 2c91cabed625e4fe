"""Charts of the model result: lost throughput, other layouts, and forward pass time."""

from typing import Any, Final

import altair as alt
import polars as pl

from rlscope.analysis.result import RunFacts
from rlscope.reports.charts.colors import (
    BAND,
    CHOSEN,
    GENERATED,
    INK,
    MUTED,
    PAGE,
    PLAIN,
    SHADE,
)
from rlscope.reports.charts.encoding import (
    HEIGHT,
    Chart,
    amount,
    layered,
    series_palette,
    tip,
)
from rlscope.reports.charts.model_frames import (
    FITTED,
    FRONTIER,
    MEASURED,
    SLOWER,
    SYNCHRONOUS,
    beyond_visited,
)
from rlscope.reports.charts.series import rounded
from rlscope.reports.text.advice import CURRENT

_ROOM_FOR_LABELS: Final = 1.2
_TICKS_MOST: Final = 12
_EDGE_RATIO: Final = 0.25
"""Part of the width from which a name is written away from the edge, and of the height that has room below."""
_LAYOUT_TIPS: Final = [
    tip("which:N"), tip("trainer_gpus:Q", "trainer GPUs", ",d"), tip("sampler_gpus:Q", "sampler GPUs", ",d"),
    tip("max_running:Q", "running per engine", ",d"), tip("tokens_per_s:Q", "predicted tokens/s", ",.4~s"),
    tip("gain:N"), tip("sample_staleness_p95:Q", "staleness p95", ",d"), tip("waits_for:N", "limited by"),
    tip("remark:N"),
]  # fmt: skip


def frontier(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Throughput against staleness: layouts as points, with a line through the fastest under each staleness cap.

    The marked layouts are ringed and labeled.
    """
    rows, high = rounded(frame), float(frame["tokens_per_s"].max() or 1.0)  # pyright: ignore[reportArgumentType]
    x = alt.X("sample_staleness_p95:Q").title("staleness p95 of samples, or cap on it")
    oldest = int(frame["sample_staleness_p95"].max() or 0)  # pyright: ignore[reportArgumentType]
    # Vega also puts ticks at halves, which would be labeled as whole versions.
    caps = list(range(oldest + 1)) if oldest <= _TICKS_MOST else alt.Undefined
    x = x.axis(tickMinStep=1, format=",d", values=caps).scale(alt.Scale(domain=[-0.4, oldest + 0.6], nice=False))
    y = amount("tokens_per_s", "predicted trained tokens per second")
    y = y.scale(domain=[0, high * _ROOM_FOR_LABELS], nice=False)
    known = {FRONTIER: PLAIN, SLOWER: MUTED, SYNCHRONOUS: CHOSEN}
    seen = {name: color for name, color in known.items() if name in set(rows["series"])}
    color = series_palette("series", seen)
    parts = [rows.filter(series=FRONTIER), rows, rows.filter(pl.col("which") != "")]
    lines, inside, named = (alt.Chart(part).encode(x=x, y=y, tooltip=_LAYOUT_TIPS) for part in parts)
    drawn = [
        (parts[0], lines.mark_line(interpolate="step-after", strokeWidth=1.5).encode(color=color)),
        (parts[1], inside.mark_circle(size=46, opacity=1).encode(color=color)),
        (parts[2], named.mark_point(size=150, color=INK, strokeWidth=1.75)),
        *_labels(rows, x, y, high),
    ]
    # Vega warns about a layer without rows.
    return layered(*(chart for part, chart in drawn if part.height)).properties(height=HEIGHT)


def _labels(rows: pl.DataFrame, x: alt.X, y: alt.Y, high: float) -> list[tuple[pl.DataFrame, alt.Chart]]:
    """The name of each marked layout: above its ring, that of the current one below, and inwards from the edges."""
    drawn = list[tuple[pl.DataFrame, alt.Chart]]()
    places = rows["sample_staleness_p95"].unique().sort().to_list()
    named = rows.filter(pl.col("which") != "")
    for number in range(named.height):
        part = named[number : number + 1]
        place = places.index(part["sample_staleness_p95"][0]) / max(1, len(places) - 1)
        edge = -1 if place < _EDGE_RATIO else 1 if place > 1.0 - _EDGE_RATIO else 0
        is_below = part["which"][0] == CURRENT and part["tokens_per_s"][0] > _EDGE_RATIO * high
        words: dict[str, Any] = {
            "align": {-1: "left", 0: "center", 1: "right"}[edge],
            "dx": 8 * edge,
            "dy": 19 if is_below else -15,
            "fontWeight": 600,
        }
        label = alt.Chart(part).encode(x=x, y=y, text=alt.Text("which:N"))
        drawn += [
            (part, label.mark_text(stroke=PAGE, strokeWidth=4, strokeJoin="round", aria=False, **words)),
            (part, label.mark_text(**words)),
        ]
    return drawn


def pass_curve(frame: pl.DataFrame, run: RunFacts) -> Chart:
    """Measured passes, the fitted curve with its band, and operating points; extrapolated stretches are shaded."""
    times = pl.col("pass_s", "low_s", "high_s")
    rows = rounded(frame.with_columns((times * 1e3).name.map(lambda name: name.removesuffix("s") + "ms")))
    x = alt.X("running:Q").title("requests in the pass").scale(nice=False, zero=True).axis(tickCount=_TICKS_MOST)
    kinds = list(dict.fromkeys(frame["kind"]))
    tips = [
        tip("kind:N", "what"), tip("running:Q", "requests", ",.3~f"), tip("pass_ms:Q", "ms", ",.3~f"),
        tip("low_ms:Q", "5%, ms", ",.3~f"), tip("high_ms:Q", "95%, ms", ",.3~f"), tip("grade:N"),
    ]  # fmt: skip
    known = {FITTED: PLAIN, MEASURED: GENERATED, CURRENT: INK}
    color = series_palette("kind", {kind: known.get(kind, CHOSEN) for kind in kinds})
    fitted = alt.Chart(rows.filter(pl.col("kind") == FITTED)).encode(x=x)
    band = fitted.mark_area(color=BAND, opacity=0.75).encode(y=amount("low_ms", "milliseconds"), y2=alt.Y2("high_ms:Q"))
    line = fitted.mark_line().encode(y=alt.Y("pass_ms:Q"), color=color, tooltip=tips)
    cells = alt.Chart(rows.filter(pl.col("kind") == MEASURED)).mark_circle(opacity=0.7)
    cells = cells.encode(
        x=x, y=alt.Y("pass_ms:Q"), color=color, tooltip=tips,
        size=alt.Size("measurements:Q").legend(None).scale(range=[14, 120]),
    )  # fmt: skip
    points = alt.Chart(rows.filter(~pl.col("kind").is_in([FITTED, MEASURED])))
    points = points.mark_point(shape="diamond", filled=True, size=130, opacity=1, stroke=PAGE, strokeWidth=1.5)
    points = points.encode(x=x, y=alt.Y("pass_ms:Q"), color=color, tooltip=tips)
    return layered(*_shades(beyond_visited(frame)), band, cells, line, points).properties(height=HEIGHT)


def _shades(stretches: pl.DataFrame) -> list[alt.Chart]:
    """Return one shaded area per extrapolated range; empty if there is none."""
    if stretches.is_empty():
        return []
    return [
        alt.Chart(rounded(stretches))
        .mark_rect(color=SHADE)
        .encode(x=alt.X("from_running:Q"), x2=alt.X2("to_running:Q"))
    ]
