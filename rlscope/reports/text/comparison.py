"""A comparison in blocks: the page, card, Markdown and JSON take their words from here, so that they agree.

The baseline is called A, the other runs B, C and so on. This module only formats differences; it computes none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.comparison.attribution import ChangeCause, Promise, Unpriced
from rlscope.comparison.differences import (
    Basis,
    Breakdown,
    BreakdownPart,
    Learned,
    LearningRow,
    Quantity,
    Row,
    time_of,
)
from rlscope.comparison.facts import ComparedRun
from rlscope.comparison.prices import PriceName
from rlscope.comparison.runs import Pair, RunComparison
from rlscope.comparison.statistics import Difference
from rlscope.comparison.warnings import CompareWarning, CompareWarningKind
from rlscope.reports.blocks import (
    Answer,
    Block,
    Fact,
    Facts,
    Fold,
    Paragraph,
    Part,
    RoleBar,
    Roles,
    Table,
)
from rlscope.reports.text.actions import gain_words
from rlscope.reports.text.ledger import role_bar
from rlscope.reports.text.origin import start_words
from rlscope.reports.text.states import role_order, state_label, use_words

QUANTITIES: Final[Mapping[Quantity, tuple[str, fmt.Write]]] = {
    "tokens_per_s": ("training throughput", fmt.tokens_per_second),
    "tokens_per_gpu_s": ("training throughput per GPU", fmt.tokens_per_second),
    "step_s": ("step time", fmt.duration),
    "samples_per_step": ("samples per step", fmt.significant),
    "response_tokens": ("response length, mean", fmt.tokens),
    "staleness_mean": ("token staleness, mean", fmt.versions),
    "staleness_p95": ("token staleness, p95", fmt.versions),
    "staleness_in_flight": ("staleness added during generation", fmt.versions),
    "staleness_in_queue": ("staleness added in the queue", fmt.versions),
    "staleness_mean_steps": ("token staleness, mean", fmt.optimizer_steps),
    "staleness_p95_steps": ("token staleness, p95", fmt.optimizer_steps),
    "staleness_in_flight_steps": ("staleness added during generation", fmt.optimizer_steps),
    "staleness_in_queue_steps": ("staleness added in the queue", fmt.optimizer_steps),
    "update_s": ("weight update, until an engine has it", fmt.duration),
    "dropped_ratio": ("tokens dropped as stale or abandoned", fmt.percent),
}
_LEARNED: Final[Mapping[Learned, str]] = {"reward": "reward", "loss": "loss", "entropy": "token entropy"}
_CAUSES: Final[Mapping[str, str]] = {
    "layout": "layout (trainer:sampler GPUs)",
    "max_running": "max running per engine",
    "max_staleness": "staleness cap",
    "max_output_tokens": "max response tokens",
    "samples_per_step": "samples per step",
    "queue_capacity_samples": "queue capacity",
    "max_in_flight_samples": "max samples in flight",
    "max_running_samples": "max running samples",
    "response_lengths": "response length, mean tokens",
    "trainer_speed": "training speed, relative",
    "engine_speed": "engine speed at equal batch sizes, relative",
    "publish_every": "steps per weight update",
    "weight_updates": "weight update time in seconds",
    "checkpoints": "checkpoints and evaluation, seconds per step",
}
_UNPRICED: Final[Mapping[Unpriced, str]] = {
    "other_network": "A's model was fitted to a different network",
    "no_model": "no model could be fitted to A",
    "not_reproduced": "A's model does not reproduce A's own rate",
    "not_modeled": "A's model has no input for it",
    "cannot_run": "according to A's model, no step could finish with it",
}
BASES: Final[Mapping[Basis, str]] = {"steady": "steady state", "whole": "whole runs"}
"""Names of the part of the runs that was compared."""
STATES_NAMED: Final = 3
"""Maximum number of states per role in the sentence on where the GPU time went."""
_WORTH_NAMING: Final = 0.005
"""Minimum change of a state's share of its role's GPU time that the sentence mentions."""


_SIGNIFICANT: Final = (
    "Intervals are 95% intervals and cover their own row only. * significant, after correction for testing all rows, "
    "and only if the halves of neither run differ by more."
)
_DifferenceRow = tuple[str, str, str, str, str]
"""Name of a quantity, both values, the change with a mark if it is significant, and its interval if it has one."""


class PairBlocks(NamedTuple):
    """The comparison of one run with the baseline."""

    title: str
    answer: Answer
    part: Part
    """The numbers, the settings that changed, and the breakdowns."""


def letter_of(index: int) -> str:
    """Return A for the baseline, then B, C and so on; numbers after Z."""
    return ascii_uppercase[index] if index < len(ascii_uppercase) else f"#{index + 1}"


def comparison_blocks(compared: RunComparison) -> list[Block]:
    """Return the whole comparison: the first screen, then the numbers."""
    details = [*repeated_parts(compared), *(pair.part for pair in pair_blocks(compared))]
    return [*first_screen(compared).values(), *details]


def first_screen(compared: RunComparison) -> dict[str, Block]:
    """Return the answers, where the GPU time went, and the runs, by their classes on the page."""
    answers: dict[str, Block] = {f"verdict {n}": pair.answer for n, pair in enumerate(pair_blocks(compared))}
    basis: Basis = "steady" if all(pair.differences.basis == "steady" for pair in compared.pairs) else "whole"
    bars = [(bar, letter_of(n)) for n, run in enumerate(compared.runs) for bar in state_bars(run, basis)]
    bars.sort(key=lambda each: role_order(each[0].role))
    roles = Roles([bar._replace(role=f"{bar.role} {letter}") for bar, letter in bars])
    return {**answers, "bars": Part(f"GPU time, {BASES[basis]}", [roles]), "who": compared_runs(compared)}


def compared_runs(compared: RunComparison) -> Facts:
    """Return the runs, the baseline first."""
    return Facts([Fact(letter_of(n), f"{run.name}: {_about(run)}") for n, run in enumerate(compared.runs)])


def repeated_parts(compared: RunComparison) -> Iterator[Part]:
    """Yield the comparison of settings that were run several times, a part each."""
    for repeated in compared.repeated:
        before, after = (", ".join(map(letter_of, group)) for group in (repeated.baseline_runs, repeated.runs))
        title = f"{after} against {before}: repeated runs"
        known = (row for row in repeated.rows if row.difference.change is not None)
        rows = [*_rows(known, repeated.learning)]
        sentence = (
            f"Means over the runs of each setting, {BASES[repeated.basis]}. Each run counts once, so the intervals "
            "also cover what differs between runs of one setting, for example the seed and the node."
        )
        yield Part(title, [Paragraph(f"{sentence} {_SIGNIFICANT}", "note"), _table(title, after, rows, before)])


def _about(run: ComparedRun) -> str:
    facts = run.run
    gpus = fmt.counted(facts.policy_gpus, "GPU")
    parts = [
        start_words(facts.started_ns, run.data_quality.imported),
        f"{gpus}: {use_words(facts)}",
    ]
    if run.max_running is not None:
        parts.append(f"up to {fmt.count(run.max_running)} requests per engine")
    if run.table is not None:
        parts.append(f"steady state in steps {run.table.step[0]} to {run.table.step[-1]}")
    return ", ".join(parts)


def pair_blocks(compared: RunComparison) -> list[PairBlocks]:
    """Return the comparison of every other run with the baseline."""
    return [_pair(compared.baseline, pair, letter_of(index)) for index, pair in enumerate(compared.pairs, start=1)]


def _pair(baseline: ComparedRun, pair: Pair, letter: str) -> PairBlocks:
    found, title = pair.differences, f"{letter} against A"
    known = (row for row in found.quantities if (row.difference.before, row.difference.after) != (None, None))
    numbers = _table(title, letter, [*_rows(known, found.learning)])
    parts = [Part(each.title, [each]) for each in (breakdown_block(each, letter) for each in found.breakdowns)]
    more = "Breakdown of the change by state"
    shown = [
        Paragraph(f"{_stretch(baseline, pair, letter)} {_SIGNIFICANT}", "note"),
        numbers,
        *([_changes_part(causes, letter)] if (causes := pair.attribution.causes) else []),
        *([Fold(f"breakdown-{letter.lower()}", more, parts)] if parts else []),
    ]
    return PairBlocks(title, _answer(pair, letter, title), Part(f"{title}, in numbers", shown))


def _answer(pair: Pair, letter: str, title: str) -> Answer:
    rate, promise = pair.differences.row("tokens_per_s"), pair.attribution.promise
    reasons = {
        "Why": _why(pair),
        "Cause": causes_sentence(pair),
        "Prediction": "" if promise is None else promise_sentence(promise),
    }
    warnings = (_power(rate), *(warning_words(each, letter) for each in pair.warnings))
    return Answer(
        f"{title}: {label(rate)}",
        headline(rate, letter),
        [Fact(*reason) for reason in reasons.items() if reason[1]],
        warnings=[warning for warning in warnings if warning],
    )


def label(rate: Difference) -> str:
    """Return the outcome in a few words."""
    if rate.change is None:
        return "No rate to compare"
    if rate.low is None:
        return "Not tested"
    if not rate.is_significant:
        return "No significant difference"
    return "Faster" if rate.change > 0 else "Slower"


def headline(rate: Difference, letter: str) -> str:
    """Return the change of the training throughput as a sentence without a period."""
    if rate.change is None:
        return f"The throughput of {letter} and A cannot be compared: one of them has no recorded trained tokens"
    rates = f"{fmt.si(rate.after)} against {fmt.tokens_per_second(rate.before)}"
    more = "more" if rate.change >= 0 else "fewer"
    if rate.low is None or rate.high is None:
        return f"{letter} trains {fmt.percent(abs(rate.change))} {more} tokens/s than A, without an interval: {rates}"
    if not rate.is_significant:
        ends = fmt.with_interval(fmt.signed_percent, rate.change, rate.low, rate.high)
        return f"No significant difference in throughput: {ends}, {rates}"
    size = fmt.with_interval(fmt.percent, abs(rate.change), *sorted((abs(rate.low), abs(rate.high))))
    return f"{letter} trains {size} {more} tokens/s than A: {rates}"


def _power(rate: Difference) -> str:
    """Return the smallest detectable difference; empty if the difference is significant or could not be tested."""
    if rate.is_significant or rate.detectable is None:
        return ""
    least = max(rate.detectable, rate.own_change or 0.0)
    return f"With this many steps, a difference of {fmt.percent(least)} or more would have been detected."


def _why(pair: Pair) -> str:
    """Return the states whose share of GPU time changed, by role, the largest change first."""
    is_hidden = any(each.kind is CompareWarningKind.HIDDEN_SAMPLERS for each in pair.warnings)
    roles: list[str] = []
    for each in sorted(pair.differences.breakdowns, key=lambda share: role_order(share.role or "")):
        if each.name != "role_share" or (is_hidden and each.role == "sampler"):
            continue
        moved = [part for part in each.parts if abs(part.change) >= _WORTH_NAMING and _is_told(part)][:STATES_NAMED]
        words = [f"{state_label(part.name, part.reason)} {fmt.signed_points(part.change)}" for part in moved]
        roles += [f"{each.role}: {', '.join(words)}"] if words else []
    return "; ".join(roles)


def _is_told(part: BreakdownPart) -> bool:
    return part.difference is None or part.difference.p_value is None or part.difference.is_significant


def cause_name(cause: ChangeCause) -> str:
    """Return the name of a cause."""
    return _CAUSES.get(cause.name, cause.name)


def _changes_part(causes: Sequence[ChangeCause], letter: str) -> Part:
    """Return the causes, with the gain from each alone if A's model has it."""
    gains = ["not predicted" if each.alone_ratio is None else fmt.signed_percent(each.alone_ratio) for each in causes]
    rows = [(cause_name(each), each.before, each.after, gain) for each, gain in zip(causes, gains, strict=True)]
    return Part("Changes", [Table("Changes", ("", "A", letter, "gain alone,\nper A's model"), rows, "stacks")])


def causes_sentence(pair: Pair) -> str:
    """Return what changed, and the effect of it that the model of the baseline predicts."""
    attribution, rate = pair.attribution, pair.differences.row("tokens_per_s")
    if not attribution.causes:
        return "No recorded setting changed."
    if not rate.is_significant:
        return f"Changed: {_changes_words(attribution.causes)}."
    priced = [each for each in attribution.causes if each.alone_ratio is not None]
    effects = [f"{fmt.signed_percent(each.alone_ratio)} to {_changes_words([each])}" for each in priced]
    if len(priced) > 1 and attribution.together_ratio is not None:
        effects.append(f"{fmt.signed_percent(attribution.together_ratio)} to all changes together")
    measured = fmt.signed_percent(rate.change)
    said = [f"A's model attributes {', '.join(effects)}; measured {measured}."] if effects else []
    if unpriced := [each for each in attribution.causes if each.unpriced_because is not None]:
        reasons = {each.unpriced_because for each in unpriced}
        because = " and ".join(words for reason, words in _UNPRICED.items() if reason in reasons)
        said.append(f"Changed, with an unknown effect: {_changes_words(unpriced)} ({because}).")
    return " ".join(said)


def _changes_words(causes: Sequence[ChangeCause]) -> str:
    return ", ".join(f"{cause_name(each)} {each.before} → {each.after}" for each in causes)


def promise_sentence(promise: Promise) -> str:
    """Return the predicted gain of the change and the measured one."""
    kind, basis = ("fix", "; for the improvement measured, it") if promise.is_fix else ("change", " and")
    source = f"The analysis of A recommended this {kind} (action {promise.rank}){basis} predicted"
    outcome = "within the interval"
    if not promise.is_kept:
        side = "above" if promise.missed_by_ratio > 0 else "below"
        points = fmt.signed_points(abs(promise.missed_by_ratio)).removeprefix("+")
        error = ", less than the measurement may be off" if promise.is_within_error else ""
        outcome = f"{points} {side} the interval{error}"
    measured = f"measured {fmt.signed_percent(promise.measured_ratio)}, {outcome}."
    others = "" if promise.is_alone else " Other settings changed too and may have helped or hurt."
    return f"{source} {gain_words(promise.gain_ratio)}; {measured}{_prices(promise)}{others}"


_PRICES: Final[Mapping[PriceName, tuple[str, fmt.Write]]] = {
    "dropped_ratio": ("dropped tokens", fmt.percent),
    "staleness_p95_steps": ("p95 sample staleness", fmt.optimizer_steps),
    "trained_length_change_ratio": ("mean trained length", fmt.signed_percent),
    "longest_trained_ratio": ("trained share of the longest 10% of responses", fmt.percent),
}


def _prices(promise: Promise) -> str:
    """Return the predicted prices and the measured ones after a space; empty without any."""
    said: list[str] = []
    for price in promise.prices:
        name, write = _PRICES[price.name]
        outcome = "" if price.is_as_predicted else " (not as predicted)"
        said.append(f"{name} {fmt.with_interval(write, *price.predicted)}, measured {write(price.measured)}{outcome}")
    return f" It also predicted: {'; '.join(said)}." if said else ""


_WARNINGS: Final[Mapping[CompareWarningKind, str]] = {
    CompareWarningKind.SAME_RUN: "A and {letter} are the same run: a recording is compared with itself.",
    CompareWarningKind.NO_WINDOW: (
        "{about} never reaches steady state: whole runs are compared, startup included, and nothing is tested."
    ),
    CompareWarningKind.COUNTS_PROMPTS: (
        "Trained tokens include prompts, because the trainers count them: longer prompts raise the rate."
    ),
    CompareWarningKind.HIDDEN_SAMPLERS: (
        "The log of {about} does not show what its samplers do, so sampler states cannot be compared."
    ),
    CompareWarningKind.MODEL_MISSES: (
        "A's model misses the second half of A's steady state by more than 10%, so its gains are rough."
    ),
    CompareWarningKind.SETTINGS_PARTLY_KNOWN: (
        "{about} settings are not compared because a run's log does not record them."
    ),
    CompareWarningKind.DROPPED_LENGTHS: (
        "Trained responses are {size} {longer} in {letter} because long samples are dropped {more} often: an effect of "
        "the change, not a separate cause of the difference."
    ),
    CompareWarningKind.DRIFT: (
        "Response lengths drift within {about}, so its rate applies only to the compared steps."
    ),
    CompareWarningKind.NOISY: (
        "Noisy: the halves of one run differ by {size}, more than the {between} between A and {letter}."
    ),
    CompareWarningKind.OTHER_STEPS: (
        "The steady states cover different training steps ({ends}): the runs are at different points."
    ),
}


def warning_words(each: CompareWarning, letter: str) -> str:
    """Return a warning as a sentence."""
    words = {"about": each.about, "before": each.before, "after": each.after, "letter": letter}
    words["ends"] = f"{each.before} in A, {each.after} in {letter}"
    if each.kind in (CompareWarningKind.DROPPED_LENGTHS, CompareWarningKind.NOISY):
        words["size"] = fmt.percent(abs(float(each.about)))
        words["longer"], words["more"] = ("longer", "less") if float(each.about) > 0 else ("shorter", "more")
    if each.kind is CompareWarningKind.NOISY:
        words["between"] = fmt.percent(abs(float(each.before)))
    return _WARNINGS[each.kind].format(**words)


def _stretch(baseline: ComparedRun, pair: Pair, letter: str) -> str:
    if pair.differences.basis == "whole":
        return "Whole runs, startup included."
    tables = (baseline.table, pair.run.table)
    steps = [f"{name}: {table.step.size} steps" for name, table in zip(("A", letter), tables, strict=True) if table]
    return f"Steady state ({', '.join(steps)})."


def _rows(quantities: Iterable[Row], learning: Iterable[LearningRow]) -> Iterator[_DifferenceRow]:
    for row in quantities:
        yield _measured(*QUANTITIES[row.quantity], row.difference)
    for row in learning:
        where = f"step {fmt.count(row.where)}" if row.at == "step" else f"{fmt.significant(row.where)} GPU-h"
        yield _measured(f"{_LEARNED[row.learned]} at {where}", fmt.significant, row.difference)


def _measured(name: str, write: fmt.Write, found: Difference) -> _DifferenceRow:
    return _cells(name, write, fmt.signed_percent if found.scale == "ratio" else fmt.signed(write), found)


def _cells(name: str, write: fmt.Write, signed: fmt.Write, found: Difference | BreakdownPart) -> _DifferenceRow:
    mark = "*" if found.is_significant else ""
    ends = "" if found.low is None else fmt.between(signed(found.low), signed(found.high))
    return (name, write(found.before), write(found.after), signed(found.change) + mark, ends)


def _table(title: str, letter: str, rows: Sequence[_DifferenceRow], baseline: str = "A") -> Table:
    """Return quantities of two runs, or of two settings, with their change; without intervals if no row has one."""
    columns = ("", baseline, letter, "change", "95% interval")
    shown = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    cells = [row[:shown] for row in rows]
    return Table(title, columns[:shown], cells, "compared", numbers=frozenset({1, 2, 3}), wide=frozenset({4}))


_TITLES: Final[Mapping[str, tuple[str, fmt.Write]]] = {
    "step_s": ("Step time by trainer state", fmt.duration),
    "gpu_s_per_1k_tokens": ("GPU time per 1,000 trained tokens", fmt.gpu_time),
    "role_share": ("Share of GPU time", fmt.percent),
}
"""Titles of the breakdowns shown, and the formatter of their numbers."""
MOST_PARTS: Final = 8
_LEAST_PART: Final = 0.01
"""Minimum share of a breakdown's largest change that gets a row of its own; smaller parts share the row "other"."""
_NOTHING: Final = 0.0005
"""Minimum share of the total at which the row "other" is shown."""


def breakdown_block(each: Breakdown, letter: str) -> Table:
    """Return the rows of a breakdown, with its small parts in one row; the last row is the total."""
    title, write = _TITLES[each.name]
    least = _LEAST_PART * max((abs(part.change) for part in each.parts), default=0.0)
    shown = [part for part in each.parts[:MOST_PARTS] if abs(part.change) >= least]
    signed, rest = fmt.signed(write), each.parts[len(shown) :]
    has_roles = each.role is None and each.name != "step_s"
    names = [f"{part.role}: " * has_roles + state_label(part.name, part.reason) for part in shown]
    rows = [_cells(name, write, signed, part) for name, part in zip(names, shown, strict=True)]
    before, after, change = (sum(getattr(part, name) for part in rest) for name in ("before", "after", "change"))
    if rest and max(map(abs, (before, after, change))) >= _NOTHING * max(abs(each.before), abs(each.after)):
        rows.append(("other", write(before), write(after), signed(change), ""))
    rows.append(("total", write(each.before), write(each.after), signed(each.change), ""))
    return _table(f"{title}, {each.role}" if each.role else title, letter, rows)


def state_bars(run: ComparedRun, basis: Basis) -> list[RoleBar]:
    """Return where each role's GPU time went in the compared part of the run, as in the bars of a report."""
    time = time_of(run, basis)
    bars = [role_bar(role, time.states, run.dropped_ratio or 0.0) for role in sorted(time.gpus, key=role_order)]
    return [bar for bar in bars if bar.parts]
