"""Model results on a terminal, readable from 60 columns on and without color."""

from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlscope import format as fmt
from rlscope.analysis.result import RunFacts
from rlscope.format import bulleted, plain
from rlscope.model.forecast.result import ModelResult, NoModelResult
from rlscope.reports.terminal.parts import WIDE
from rlscope.reports.text import advice
from rlscope.reports.text import model as model_words
from rlscope.reports.text.names import preemption_sentence

_ADVICE: Final = "Recommended layout"
_LAYOUTS_SHOWN: Final = 6


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
        _layouts(model, with_intervals=width >= WIDE),
        *(bulleted("!", line) for line in model_words.remarks(model)),
    )


def _layouts(model: ModelResult, *, with_intervals: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("trainer : sampler\nGPUs × max running", no_wrap=True)
    for title in ("steady\ntokens/s", "predicted\ngain", "staleness\np95"):
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
    bar = 32 if width >= WIDE else 24
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
