"""The screen of `rlscope watch`: firing alerts, GPU states per role, batch sizes, staleness, the queue."""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlscope import format as fmt
from rlscope.alerts.live.facts import LiveFacts
from rlscope.alerts.live.watch import Look
from rlscope.analysis.result import Severity
from rlscope.format import bulleted, plain
from rlscope.reports.blocks import Kind
from rlscope.reports.terminal.parts import pairs
from rlscope.reports.text import watch
from rlscope.reports.text.states import state_label, state_of

_STYLES: Final[dict[Severity, str]] = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_FILLS: Final[dict[Kind, str]] = {"work": "█", "wait": "▒", "weights": "░", "housekeeping": "░", "unknown": "░"}
_BAR: Final = 24
_MOST_STATES: Final = 5


def screen(look: Look) -> RenderableType:
    """The screen for one poll; it reads the same without color."""
    moment_ns, facts = watch.moment_ns(look), look.view.facts
    head = Text.assemble((watch.state_words(look), "bold"), (f"  {fmt.instant(look.view.now_ns)}", "dim"))
    if facts is None:
        return Group(head, *_notes(look))
    return Group(
        head,
        Text(""),
        _alerts(look),
        *_notes(look),
        Text(""),
        pairs(watch.fact_rows(facts, moment_ns)),
        Text(""),
        _sides(facts),
    )


def _alerts(look: Look) -> RenderableType:
    # What fired until the end of the run stays on the last screen.
    firing = [alert for alert in look.view.alerts if alert.end_ns is None or look.view.ended]
    if not firing:
        return Text("no alerts")
    table = Table.grid(padding=(0, 2, 0, 0))
    for alert in sorted(firing, key=lambda alert: list(_STYLES).index(alert.severity)):
        table.add_row(
            Text(alert.severity, style=_STYLES[alert.severity]),
            plain(watch.alert_words(alert, watch.moment_ns(look))),
        )
    return table


def _notes(look: Look) -> list[RenderableType]:
    silences = watch.silence_words(look.view.facts) if look.view.facts is not None else []
    return [bulleted("!", note) for note in (*silences, *look.troubles, *look.view.problems)]


def _sides(facts: LiveFacts) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for side in watch.sides_of(facts):
        table.add_row(plain(watch.side_name(side)), "", "")
        states = sorted(side.state_ratios.items(), key=lambda item: -item[1])[:_MOST_STATES]
        for name, ratio in states:
            bar = _FILLS[state_of(name).kind] * max(1, round(ratio * _BAR))
            table.add_row(Text(f"  {state_label(name, None)}", style="dim"), fmt.percent(ratio), bar)
        if not states:
            table.add_row(Text(f"  {fmt.NO_DATA}", style="dim"), "", "")
    return table
