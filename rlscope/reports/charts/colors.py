"""The colors of the report: each color has one meaning in every chart, bar and legend.

| color | constant | meaning |
|---|---|---|
| blue | TRAINED | training, and tokens that were trained on |
| green | GENERATED | generation, and generated tokens |
| hollow green hatching | a state of the bars | generation whose samples were dropped |
| purple | UPDATE, APPLIED | weight updates: publication dark, application light |
| orange, amber | states of the ledger | waits, hatched in the lanes of the workers |
| brown | STALE, HEAT | staleness, the darker the staler |
| crimson | LIMIT | a limit of the run, and what lies at it or beyond it |
| slate | PLAIN | a quantity without a meaning of its own: counts, waits, rates of the model |
| slate, magenta, cyan, olive | palette | names side by side: engines, queues, splits |
| magenta | CHOSEN | the recommended layout |
| black or white | INK | references and labels, and the current layout |
| greys | BAND, SHADE, GREY, MUTED | ranges, background, housekeeping, unknown |

The states of the ledger have their colors in `reports/text/states.py`: blues train, greens generate, oranges wait,
purples update, grays keep house. Colors are CSS variables of `templates/report.css`; outside the report, each falls
back to the color of light mode.
"""

from typing import Final

TRAINED: Final = "var(--state-train, #0b6aa2)"
GENERATED: Final = "var(--state-decoding, #007a63)"
UPDATE: Final = "var(--state-publishing-weights, #6f4fa3)"
APPLIED: Final = "var(--state-applying-weights, #b98bd0)"
STALE: Final = "var(--stale, #7a4a1e)"
HEAT: Final = [
    f"var(--heat-{n}, {color})"
    for n, color in enumerate(
        ("#f6ecdf", "#ead5b8", "#d9b88b", "#c2935c", "#9e6c35", "#764819", "#472808"), start=1
    )
]  # fmt: skip
"""From low to high, or from fresh to stale: one hue, read by its strength alone."""
LIMIT: Final = "var(--limit, #a4163f)"
PLAIN: Final = "var(--series-1, #3f4c5a)"
CHOSEN: Final = "var(--series-2, #b5338a)"
INK: Final = "var(--ink, #16191d)"
PAGE: Final = "var(--page, #ffffff)"
MUTED: Final = "var(--muted, #5d6670)"
GREY: Final = "var(--hatch-line, #a5abb2)"
BAND: Final = "var(--band, #d3dae1)"
SHADE: Final = "var(--shade, #f1f3f5)"

_SERIES: Final = (
    PLAIN,
    CHOSEN,
    *(
        f"var(--series-{n}, {color})"
        for n, color in enumerate(("#2397ab", "#8a8a12", "#7f8b97", "#de8cc2"), start=3)
    ),
)  # fmt: skip


def palette(size: int) -> list[str]:
    """Return `size` colors for names side by side; colors repeat if there are too few."""
    return [_SERIES[n % len(_SERIES)] for n in range(size)]
