"""A comparison as a JSON document, and as Markdown for a pull request.

`change` is B over A less 1 if `scale` is "ratio", and B minus A in the quantity's unit if it is "absolute".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import ConfigDict

from rlscope.analysis.result import Bottleneck
from rlscope.comparison.attribution import CauseKind, Promise, Unpriced
from rlscope.comparison.confounders import ConfounderKind
from rlscope.comparison.differences import Basis, BreakdownName, BreakdownPart, Differences, Learned, Quantity
from rlscope.comparison.facts import ComparedRun, plain
from rlscope.comparison.runs import Pair, RunComparison
from rlscope.comparison.statistics import Difference, Scale
from rlscope.model.forecast.actions import ActionWhat
from rlscope.reports.documents import SCHEMA_VERSION, Document, Figure
from rlscope.reports.markdown import table
from rlscope.reports.text import comparison as words
from rlscope.reports.text.comparison import PairWords
from rlscope.text_out import for_markdown


class ComparedRunJson(Document):
    """One run of the comparison."""

    letter: str
    """A for the baseline, then B, C and so on."""
    name: str
    """Identifier of the run, or the name of its folder or log if two runs share one identifier."""
    run_id: str
    """Identifier of the run."""
    started_ns: int
    """Start of the run, in UTC epoch nanoseconds."""
    trainer_gpus: int
    """Trainer GPUs."""
    sampler_gpus: int
    """Sampler GPUs."""
    colocated_gpus: int
    """GPUs that both train and sample."""
    max_running: int | None
    """Limit on running requests of an engine; null if not recorded."""
    first_step: int | None
    """First optimizer step of the steady state; null if there is none."""
    last_step: int | None
    """Last optimizer step of the steady state; null if there is none."""
    steady_tokens_per_s: Figure
    """Trained response tokens per second in steady state."""
    bottleneck: Bottleneck
    """The bottleneck of the run, from its own analysis."""
    settings: Mapping[str, str | int | float | bool | None]
    """The run's config: nested entries by dotted names, lists as text."""
    devices: Mapping[str, str]
    """Recorded GPU models, by role."""


class DifferenceJson(Document):
    """One number of both runs. Null: unknown, or not tested because a run has too few steps."""

    before: Figure
    """Value in A."""
    after: Figure
    """Value in the other run."""
    scale: Scale
    """Whether `change` is a ratio or a difference."""
    change: Figure
    """The difference, on the scale."""
    low: Figure
    """Low end of its 95% interval."""
    high: Figure
    """High end of its 95% interval."""
    p_value: Figure
    """Probability, 0 to 1, of a difference at least as large between two runs with the same settings, before
    correction."""
    detectable: Figure
    """Smallest difference that would be detected in 80% of such pairs, on the scale."""
    own_change: Figure
    """Absolute difference between the two halves of one run, on the scale; the larger one of the two runs."""
    is_significant: bool
    """Whether the difference exceeds the noise; false also if it was not tested."""


class ComparedQuantityJson(DifferenceJson):
    """One quantity of both runs."""

    quantity: Quantity
    """The quantity; its unit is in its name."""


class LearnedJson(DifferenceJson):
    """Reward, loss or entropy of both runs at the same point: the mean of the last ten steps up to it."""

    learned: Learned
    """The quantity."""
    at: Literal["step", "gpu_hours"]
    """Basis of the comparison: the same number of steps or the same number of GPU-hours."""
    where: Figure
    """The step, or the GPU-hours, that both runs reached."""


class PartJson(Document):
    """One part of a breakdown."""

    name: str
    """State of the ledger, or name of the part."""
    role: str | None
    """Role of the workers; null for a part that is not a state."""
    reason: str | None
    """Reason for the wait; null if the state needs no reason."""
    before: Figure
    """Value in A."""
    after: Figure
    """Value in the other run."""
    change: Figure
    """Contribution to the change of the total."""
    low: Figure
    """Low end of the 95% interval of `change`; null if it has none."""
    high: Figure
    """High end of the 95% interval of `change`; null if it has none."""
    is_significant: bool | None
    """Whether the change exceeds the noise. Only shares of GPU time are tested; null for other parts."""


class BreakdownJson(Document):
    """A difference and the parts that add up to it."""

    name: BreakdownName
    """rate: logarithm of the trained tokens per second. step_s: seconds of a step by the trainers' states.
    gpu_s_per_1k_tokens: GPU-seconds per 1,000 trained tokens by state. role_share: shares of a role's GPU time.
    staleness: versions per trained token. tokens_per_step: trained tokens per step."""
    role: str | None
    """Role of role_share; null for other breakdowns."""
    before: Figure
    """Total in A."""
    after: Figure
    """Total in the other run."""
    change: Figure
    """Change of the total: exactly the sum of the parts' changes."""
    parts: tuple[PartJson, ...]
    """The parts, sorted by the size of their change."""


class SettingChangeJson(Document):
    """One setting that changed."""

    name: str
    """Name of the entry in the config or in the layout."""
    before: str | int | float | bool | None
    """Value in A; null if it was not set."""
    after: str | int | float | bool | None
    """Value in the other run; null if it was not set."""


class CauseJson(Document):
    """One cause of the change in the rate, according to A's model."""

    kind: CauseKind
    """setting: the config or the layout changed. measured: a measured quantity changed."""
    name: str
    """Name of the setting or quantity."""
    before: str
    """Value in A."""
    after: str
    """Value in the other run."""
    alone_ratio: Figure
    """Modeled gain of trained tokens per second from this change alone; null if the model cannot predict it."""
    share_ratio: Figure
    """Modeled share of the logarithm of the measured change; null if there is no significant change to attribute."""
    unpriced_because: Unpriced | None
    """Reason why the model assigns no share. other_network: the runs train different models. no_model: A has no model.
    not_reproduced: the model does not reproduce A's own rate. not_modelled: the model has no such input. cannot_run:
    according to the model, the run could not run with this change. too_many: only the first few causes are evaluated.
    not_together: the run could not run with all causes at once. Null if a share is assigned."""


class PromiseJson(Document):
    """The expected gain of the change beside the measured one."""

    is_recommended: bool
    """Whether the analysis of A recommended the change; otherwise, the expectation comes from A's model at comparison
    time."""
    rank: int | None
    """Rank of the action in the recommendation, starting at 1; null if it was not recommended."""
    target: ActionWhat | None
    """The quantity that the action changes; null if it was not recommended."""
    gain_ratio: Figure
    """Expected gain of trained tokens per second, 0.1 for 10% more. For a fix, the gain from the measured part of the
    fix."""
    gain_low_ratio: Figure
    """Low end of the 90% interval of `gain_ratio`."""
    gain_high_ratio: Figure
    """High end of the 90% interval of `gain_ratio`."""
    measured_ratio: Figure
    """Measured gain."""
    is_kept: bool
    """Whether the measured gain is within the interval."""
    missed_by_ratio: Figure
    """Distance of the measured gain from the interval; negative if the gain fell short."""
    is_alone: bool
    """Whether no other setting changed."""


class ConfounderJson(Document):
    """One reason to interpret the comparison with care."""

    kind: ConfounderKind
    """Kind of the reason."""
    sentence: str
    """The reason in words."""


class PairJson(Document):
    """One run compared with the baseline."""

    run: ComparedRunJson
    """The run."""
    basis: Basis
    """Whether the comparison covers the steady states or the whole runs."""
    label: str
    """The outcome in a few words."""
    headline: str
    """The outcome in one sentence."""
    confounders: tuple[ConfounderJson, ...]
    """Reasons for care, the most important first."""
    quantities: tuple[ComparedQuantityJson, ...]
    """Quantities of both runs, starting with the trained tokens per second."""
    learning: tuple[LearnedJson, ...]
    """Reward, loss and entropy, if recorded."""
    breakdowns: tuple[BreakdownJson, ...]
    """Sources of the differences."""
    tested: int
    """Number of differences tested; the significance of all but the rate is corrected for this number."""
    changes: tuple[SettingChangeJson, ...]
    """Settings that changed."""
    causes: tuple[CauseJson, ...]
    """Causes of the change in the rate, the largest contribution first."""
    unexplained_share_ratio: Figure
    """Share of the measured change that no cause explains; null if there is no significant change to attribute."""
    promise: PromiseJson | None
    """The expected gain of the change; null if there was no expectation."""


class CompareDocument(Document):
    """Output of `rlscope compare --json`: a baseline, and every other run compared with it."""

    model_config = ConfigDict(title="rlscope compare --json")

    schema_version: Literal[1]
    """Version of this contract."""
    baseline: ComparedRunJson
    """Run A."""
    comparisons: tuple[PairJson, ...]
    """The other runs, in the given order."""


def compare_document(compared: RunComparison) -> CompareDocument:
    """Return the whole comparison."""
    return CompareDocument(
        schema_version=SCHEMA_VERSION,
        baseline=_run(compared.baseline, 0),
        comparisons=tuple(_pair(pair, index) for index, pair in enumerate(compared.pairs, start=1)),
    )


def _run(run: ComparedRun, index: int) -> ComparedRunJson:
    return ComparedRunJson(
        letter=words.letter_of(index),
        name=run.name,
        run_id=run.facts.run_id,
        started_ns=run.facts.started_ns,
        trainer_gpus=run.layout.trainer_gpus,
        sampler_gpus=run.layout.sampler_gpus,
        colocated_gpus=run.layout.colocated_gpus,
        max_running=run.layout.max_running,
        first_step=run.first_step,
        last_step=run.last_step,
        steady_tokens_per_s=run.steady_tokens_per_s,
        bottleneck=run.bottleneck,
        settings={name: plain(value) for name, value in run.settings.items()},
        devices=run.devices,
    )


def _pair(pair: Pair, index: int) -> PairJson:
    found, letter = pair.differences, words.letter_of(index)
    rate = found.row("tokens_per_s")
    return PairJson(
        run=_run(pair.run, index),
        basis=found.basis,
        label=words.label(rate),
        headline=words.headline(rate, letter),
        confounders=tuple(
            ConfounderJson(kind=each.kind, sentence=words.caution(each, letter)) for each in pair.confounders
        ),
        quantities=tuple(
            ComparedQuantityJson(**_numbers(each.difference), quantity=each.quantity) for each in found.rows
        ),
        learning=tuple(
            LearnedJson(
                **dict(DifferenceJson.read(each.difference)), learned=each.learned, at=each.at, where=each.where
            )
            for each in found.learning
        ),
        breakdowns=_breakdowns(found),
        tested=found.tested,
        changes=tuple(SettingChangeJson.read(each) for each in pair.attribution.changes),
        causes=tuple(CauseJson.read(each) for each in pair.attribution.causes),
        unexplained_share_ratio=pair.attribution.unexplained_share_ratio,
        promise=None if pair.attribution.promise is None else _promise(pair.attribution.promise),
    )


def _numbers(difference: Difference) -> dict[str, Any]:
    return dict(DifferenceJson.read(difference))


def _breakdowns(found: Differences) -> tuple[BreakdownJson, ...]:
    return tuple(
        BreakdownJson(
            name=each.name,
            role=each.role,
            before=each.before,
            after=each.after,
            change=each.change,
            parts=tuple(_part(part, is_tested=each.name == "role_share") for part in each.parts),
        )
        for each in found.breakdowns
    )


def _part(part: BreakdownPart, *, is_tested: bool) -> PartJson:
    found = part.difference
    return PartJson(
        name=part.name,
        role=part.role,
        reason=part.reason,
        before=part.before,
        after=part.after,
        change=part.change,
        low=None if found is None else found.low,
        high=None if found is None else found.high,
        is_significant=found.is_significant if is_tested and found is not None else None,
    )


def _promise(promise: Promise) -> PromiseJson:
    return PromiseJson(
        is_recommended=promise.is_recommended,
        rank=promise.rank,
        target=promise.what,
        gain_ratio=promise.promised.value,
        gain_low_ratio=promise.promised.low,
        gain_high_ratio=promise.promised.high,
        measured_ratio=promise.measured_ratio,
        is_kept=promise.is_kept,
        missed_by_ratio=promise.missed_by_ratio,
        is_alone=promise.is_alone,
    )


def as_markdown(compared: RunComparison) -> str:
    """Return the comparison as Markdown for a pull request or a chat, without a trailing newline.

    Text from the runs is escaped.
    """
    lines: list[str] = []
    for pair in words.pairs_in_words(compared):
        lines += _pair_markdown(pair)
    for run in words.runs_in_words(compared):
        lines.append(f"<sub>{run.letter}: {for_markdown(run.name)} · {for_markdown(run.about)}</sub><br>")
    return "\n".join(lines).rstrip()


def _pair_markdown(pair: PairWords) -> Iterator[str]:
    yield f"### {for_markdown(pair.label)} — {for_markdown(pair.headline)}"
    yield ""
    yield from (f"> {for_markdown(each)}\n>" for each in pair.cautions[:-1])
    yield from (f"> {for_markdown(each)}\n" for each in pair.cautions[-1:])
    if pair.why:
        yield f"**Where the GPU time went:** {for_markdown(pair.why)}\n"
    yield f"**Cause:** {for_markdown(pair.causes_sentence)}\n"
    if pair.promise:
        yield f"**Prediction:** {for_markdown(pair.promise)}\n"
    letter = pair.title.split()[0]
    yield from table(("", "A", letter, "change", "95% interval", words.TESTED), pair.rows)
    yield from table(("changed", "A", letter, "predicted by A's model", "share of the change"), pair.causes)
    for each in pair.breakdowns[:2]:
        yield "<details><summary>" + for_markdown(each.title) + "</summary>\n"
        yield from table(("", "A", letter, "change", "95% interval", words.TESTED), each.rows)
        yield "</details>\n"
    yield f"<sub>{for_markdown(pair.stretch)}</sub>\n"
