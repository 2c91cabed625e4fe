"""An analysis, and a comparison, as GitHub Markdown for a pull request or a chat: the card as text and tables.

Strings from the run are escaped: no markup, no mentions, no links.
"""

from collections.abc import Iterable, Iterator, Sequence

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.comparison.runs import RunComparison
from rlscope.model.forecast.result import ModelResult
from rlscope.reports.text import findings, step_bounds
from rlscope.reports.text.actions import COLUMNS, filled_columns
from rlscope.reports.text.actions import TITLE as ACTIONS_TITLE
from rlscope.reports.text.brief import Brief, RolePart, brief_of
from rlscope.reports.text.comparison import TESTED, PairWords, pairs_in_words, runs_in_words
from rlscope.reports.text.names import preemption_sentence
from rlscope.reports.text.rules import TITLE, FiredRule, fired_rules
from rlscope.text_out import for_markdown


def as_markdown(analysis: AnalysisResult) -> str:
    """Return the whole text, without a trailing newline."""
    brief = brief_of(analysis)
    return "\n".join(
        (
            *_verdict(brief),
            *_actions(brief),
            *_bounds(analysis),
            *_gpu_time(brief),
            *_layout(brief),
            *_preemptions(analysis),
            *_found(analysis),
            *_fired(analysis),
            *_data(brief),
        )
    )


def _verdict(brief: Brief) -> Iterator[str]:
    yield f"### {for_markdown(brief.label)} — {for_markdown(brief.headline)}"
    yield ""
    if brief.alarm is not None:
        yield f"> **Alarm.** {for_markdown(brief.alarm)}"
        yield ""
    yield f"**Why:** {for_markdown(brief.why)}"
    yield ""
    yield f"**Next:** {for_markdown(brief.next_step)}"
    yield ""


def _actions(brief: Brief) -> Iterator[str]:
    if brief.actions:
        yield f"#### {ACTIONS_TITLE}"
        yield ""
    places = filled_columns(brief.actions)
    rows = [(f"{number}.", *(row[place] for place in places)) for number, row in enumerate(brief.actions, 1)]
    yield from table(("", *(COLUMNS[place] for place in places)), rows)


def _bounds(analysis: AnalysisResult) -> Iterator[str]:
    bounds = analysis.step_bounds
    if bounds is not None:
        yield f"#### {step_bounds.TITLE}"
        yield ""
        yield for_markdown(step_bounds.phases_sentence(bounds.phases))
        yield ""
        yield from table(step_bounds.COLUMNS, step_bounds.bound_rows(bounds))


def _gpu_time(brief: Brief) -> Iterator[str]:
    yield f"**GPU time, whole run:** {for_markdown(brief.spent)}"
    yield ""
    rows = [(role.role, _priced(role.gpu_time, role.money), _parts(role.named)) for role in brief.roles]
    yield from table(("", "GPU time", "largest states"), rows)
    causes = [(cause.words, _priced(cause.gpu_time, cause.money), cause.share) for cause in brief.causes]
    over = brief.stretch[:1].lower() + brief.stretch[1:]
    yield from table((f"losses, {over}", "GPU time", "share"), causes)


def _layout(brief: Brief) -> Iterator[str]:
    if brief.choice is None:
        yield f"**Recommended layout:** {for_markdown(brief.no_choice)}"
        yield ""
    else:
        yield f"**Recommended layout:** {for_markdown(brief.choice.headline)}. {for_markdown(brief.choice.why)}"
        yield ""
        yield from table(("", *brief.choice.columns), [(name, *values) for name, values in brief.choice.rows])
    achieved = brief.achieved
    yield f"**{for_markdown(achieved.name)}:** {for_markdown(achieved.value)}, {for_markdown(achieved.note)}"
    yield ""


def _preemptions(analysis: AnalysisResult) -> Iterator[str]:
    sentence = preemption_sentence(analysis.model) if isinstance(analysis.model, ModelResult) else None
    if sentence is not None:
        yield f"**KV cache:** {for_markdown(sentence)}"
        yield ""


def _found(analysis: AnalysisResult) -> Iterator[str]:
    rows = [
        (each.severity, findings.title(each), "" if each.cost_gpu_s is None else fmt.gpu_time(each.cost_gpu_s))
        for each in analysis.findings
    ]
    yield from table(("severity", "finding", "GPU time"), rows)


def _fired(analysis: AnalysisResult) -> Iterator[str]:
    fired = fired_rules(analysis)
    if fired:
        yield f"#### {TITLE}"
        yield ""
    yield from table(FiredRule._fields, fired)


def _data(brief: Brief) -> Iterator[str]:
    yield f"{'⚠' if brief.gaps else '✓'} {for_markdown(brief.quality)}"
    yield ""
    yield f"<sub>{for_markdown(brief.run_id)} · {for_markdown(brief.about)}</sub>"


def _parts(parts: Iterable[RolePart]) -> str:
    return ", ".join(f"{part.label} {part.share}" for part in parts)


def _priced(gpu_time: str, money: str) -> str:
    return f"{gpu_time}, {money}" if money else gpu_time


def comparison_markdown(compared: RunComparison) -> str:
    """Return the comparison as Markdown for a pull request or a chat, without a trailing newline.

    Text from the runs is escaped.
    """
    lines: list[str] = []
    for pair in pairs_in_words(compared):
        lines += _pair_markdown(pair)
    for run in runs_in_words(compared):
        lines.append(f"<sub>{run.letter}: {for_markdown(run.name)} · {for_markdown(run.about)}</sub><br>")
    return "\n".join(lines).rstrip()


def _pair_markdown(pair: PairWords) -> Iterator[str]:
    yield f"### {for_markdown(pair.label)} — {for_markdown(pair.headline)}"
    yield ""
    yield from (f"> {for_markdown(each)}\n>" for each in pair.warnings[:-1])
    yield from (f"> {for_markdown(each)}\n" for each in pair.warnings[-1:])
    if pair.why:
        yield f"**Where the GPU time went:** {for_markdown(pair.why)}\n"
    yield f"**Cause:** {for_markdown(pair.causes_sentence)}\n"
    if pair.promise:
        yield f"**Prediction:** {for_markdown(pair.promise)}\n"
    letter = pair.title.split()[0]
    yield from table(("", "A", letter, "change", "95% interval", TESTED), pair.rows)
    yield from table(("changed", "A", letter, "predicted by A's model", "share of the change"), pair.causes)
    for each in pair.breakdowns[:2]:
        yield "<details><summary>" + for_markdown(each.title) + "</summary>\n"
        yield from table(("", "A", letter, "change", "95% interval", TESTED), each.rows)
        yield "</details>\n"
    yield f"<sub>{for_markdown(pair.stretch)}</sub>\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table followed by an empty line; nothing if there are no rows."""
    if not rows:
        return
    yield _row(headings)
    yield "|" + " --- |" * len(headings)
    for row in rows:
        yield _row(row)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(for_markdown, cells)) + " |"
