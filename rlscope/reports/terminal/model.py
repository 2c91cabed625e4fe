"""Model results, what-ifs and plans on a terminal, readable from 60 columns on and without colour."""

from typing import Final, NamedTuple

from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlscope import format as fmt
from rlscope.analysis.result import RunFacts
from rlscope.format import bulleted, plain
from rlscope.model.forecast.plan import PlanResult
from rlscope.model.forecast.result import ModelResult, NoModelResult
from rlscope.model.forecast.what_if import WhatIf
from rlscope.planning.schema import PlanFile
from rlscope.reports.text import advice
from rlscope.reports.text import model as model_words
from rlscope.reports.text import plan as plan_words
from rlscope.reports.text import what_if as what_if_words
from rlscope.reports.text.names import preemption_sentence
from rlscope.reports.text.plan import NOTHING_MEASURED, assumption_lines, cost_line

_ADVICE: Final = "Recommended layout"
_LAYOUTS_SHOWN: Final = 6
_WIDE: Final = 100


class TerminalSection(NamedTuple):
    """A titled block of the card."""

    title: str
    body: RenderableType


def model_sections(model: ModelResult | NoModelResult, run: RunFacts, width: int) -> list[TerminalSection]:
    """Recommended layout, predicted, measured and replayed, losses from the upper bound down, time to finish."""
    if isinstance(model, NoModelResult):
        return [TerminalSection(_ADVICE, plain(model_words.no_result_sentence(model)))]
    return [
        TerminalSection(_ADVICE, _advice(model, width)),
        TerminalSection(model_words.PREDICTION_TITLE, _predicted(model)),
        TerminalSection(model_words.REPLAY_TITLE, _replayed(model)),
        TerminalSection(model_words.GAP_TITLE, _gap(model, width)),
        TerminalSection("Time to finish", _finish(model, run)),
    ]


def _advice(model: ModelResult, width: int) -> RenderableType:
    # A change or a probe is the first line of the table of actions.
    is_ranked = model.recommendation.advice in ("change", "probe")
    return Group(
        *([] if is_ranked else [Text(advice.headline(model), style="bold")]),
        Text(advice.why(model)),
        Text(""),
        _layouts(model, with_intervals=width >= _WIDE),
        *(bulleted("!", line) for line in model_words.remarks(model)),
    )


def _layouts(model: ModelResult, *, with_intervals: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trainer : sampler\nGPUs × max running", no_wrap=True)
    for title in ("steady\ntokens/s", "modelled\ngain", "staleness\np95"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in advice.layout_rows(model, _LAYOUTS_SHOWN):
        gain = row.gain if with_intervals else row.gain.partition(" (")[0]
        table.add_row(row.mark, row.layout, row.rate.removesuffix(" tokens/s"), gain, row.staleness, row.remark)
    return table


def _finish(model: ModelResult, run: RunFacts) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for style in ("dim", "", "", ""):
        table.add_column(overflow="fold", style=style)
    for row in model_words.finish_rows(model):
        table.add_row(*row)
    return Group(table, Text(model_words.finish_sentence(model, run), style="dim"))


def _predicted(model: ModelResult) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "predicted", "measured", "against predicted"):
        table.add_column(title, overflow="fold")
    for row in model_words.compared_rows(model):
        table.add_row(*row)
    sentence = Text(model_words.prediction_sentence(model), style="dim")
    return Group(table, sentence) if model.prediction else sentence


def _replayed(model: ModelResult) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "measured", "replayed", "against measured"):
        table.add_column(title, overflow="fold")
    for row in model_words.short_replay_rows(model):
        table.add_row(*row)
    return Group(table, Text(model_words.replay_sentence(model), style="dim"))


def _gap(model: ModelResult, width: int) -> RenderableType:
    bar = 32 if width >= _WIDE else 24
    gap = model.gap
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row(model_words.BOUND, fmt.tokens_per_second(gap.bound_tokens_per_s), "█" * bar)
    for row in model_words.loss_rows(model):
        table.add_row(row.cause.name, row.lost, Text(_step(row, gap.bound_tokens_per_s, bar), style="dark_orange"))
    kept = gap.achieved_tokens_per_s / gap.bound_tokens_per_s if gap.bound_tokens_per_s else 0.0
    table.add_row(
        model_words.MEASURED, fmt.tokens_per_second(gap.achieved_tokens_per_s), "█" * max(1, round(kept * bar))
    )
    lines = [
        model_words.baseline_sentence(model),
        model_words.batch_sentence(model),
        preemption_sentence(model),
    ]
    return Group(table, *(Text(line, style="dim") for line in lines if line))


def _step(row: model_words.LossRow, bound_tokens_per_s: float, bar: int) -> str:
    """A block from the throughput before a cause to the throughput after it, at least one character wide."""
    ends = sorted((row.left_tokens_per_s, row.left_tokens_per_s + row.lost_tokens_per_s))
    first, last = (round(end / bound_tokens_per_s * bar) for end in ends)
    first = min(first, bar - 1)
    return " " * first + "▒" * max(1, last - first)


def print_what_if(model: ModelResult, answer: WhatIf, console: Console) -> None:
    """The answer, its assumptions, and the sensitivities of the current layout."""
    console.print(Text(what_if_words.headline(answer), style="bold"))
    console.print()
    console.print(_beside(answer))
    for line in what_if_words.what_if_lines(model, answer):
        console.print(bulleted("!", line))
    console.print()
    console.print(Text(model_words.SENSITIVITY_TITLE, style="bold"))
    console.print(_sensitivities(model))
    console.print(Text(model_words.sensitivity_sentence(model), style="dim"))


def _beside(answer: WhatIf) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for title in ("current", "changed", "difference"):
        table.add_column(title, overflow="fold")
    for row in what_if_words.what_if_rows(answer):
        table.add_row(*row)
    return table


def _sensitivities(model: ModelResult) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(overflow="fold", style="dim")
    for row in model_words.sensitivity_rows(model):
        table.add_row(*row)
    return table


_WIDTH_MAX: Final = 120
_SHOWN: Final = 10


def print_plan(planned: PlanResult, file: PlanFile, console: Console) -> None:
    """Print the whole answer."""
    width = min(console.width, _WIDTH_MAX)
    blocks = [
        _plan_advice(planned, file),
        _section("Layouts", _plan_layouts(planned, wide=width >= _WIDE)),
        *([_section("Uncertainties", _unknowns(planned))] if planned.unknown_costs else []),
        _section("Assumptions", Group(*(bulleted("·", line) for line in assumption_lines(planned)))),
    ]
    console.print(Group(*blocks), width=width, soft_wrap=False)


def _plan_advice(planned: PlanResult, file: PlanFile) -> Panel:
    cost = cost_line(planned, file)
    lines = [*plan_words.why(planned), *([] if cost is None else [cost])]
    body = Group(
        Text(f"{plan_words.headline(planned)}.", style="bold"),
        Text(""),
        *(plain(line) for line in lines),
        Text(""),
        Text(NOTHING_MEASURED, style="dim"),
    )
    return Panel(
        body,
        title=Text(" Plan ", style="bold"),
        title_align="left",
        border_style="none" if planned.best is not None else "red",
        box=ROUNDED,
        padding=(1, 2),
    )


def _plan_layouts(planned: PlanResult, *, wide: bool) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trainer : sampler\nGPUs × max running", no_wrap=True)
    table.add_column("modelled\ntokens/s", justify="right", no_wrap=True)
    for title in ("fastest\nin", "staleness\np95", *(["step time"] if wide else [])):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("limited by", overflow="fold")
    rows = plan_words.plan_rows(planned, _SHOWN)
    for row in rows:
        rate = row.rate.replace(" tokens/s", "")
        rate = rate if wide else rate.partition(" (")[0]
        step = (row.step,) if wide else ()
        table.add_row(
            row.mark, row.layout, rate, row.odds, row.staleness, *step, row.remark, style="dim" if row.excluded else ""
        )
    left_out = len(planned.candidates) - len(rows)
    return Group(table, *(Text(line, style="dim") for line in plan_words.sweep_lines(planned, left_out)))


def _unknowns(planned: PlanResult) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", overflow="fold")
    table.add_column("effect on\nthroughput", justify="right", no_wrap=True)
    table.add_column("cost of not\nknowing it", justify="right", no_wrap=True)
    for row in plan_words.unknown_rows(planned):
        table.add_row(*row)
    first = plan_words.measure_first(planned)
    return Group(table, *([Text(first, style="dim")] if first else []))


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, style="bold underline"), Padding(body, (0, 0, 0, 2)))
