"""One ranking, one answer: what must hold of verdict, advice and bound whatever the run, on 300 generated ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from rlscope.analysis.result import Finding
from rlscope.diagnose import RULES
from rlscope.model.forecast.layouts import trainer_rate_bound
from rlscope.model.forecast.result import NoModelResult
from rlscope.model.system import Layout
from rlscope.reports.text import findings
from rlscope.reports.text.verdict import headline, next_step
from tests.model.few_draws import few_draws
from tests.model.generated_runs import Told, told
from tests.nightly import nightly
from tests.reports.analysis_fixture import empty_analysis

RUNS: Final = 300
BLOCKS: Final = 10
_ROUNDING: Final = 1e-9
KEEPING: Final = ("fresher", "cheaper")
"""Kinds of actions that gain no throughput, and save something else."""


def card_of(run: Told) -> str:
    """The verdict of the card, and what it says is to be done next."""
    analysis = replace(empty_analysis(), verdict=run.verdict, model=run.model)
    return f"{headline(analysis)}. {next_step(analysis)}"


def first_action_belongs_to_a_named_cause_or_the_card_says_why_not(run: Told) -> Iterator[str]:
    first, verdict = run.model.ranking.first, run.verdict
    if first is None or verdict.cause is None:
        return
    reasons = ("This addresses", "but does not remove the bottleneck", "because weight updates")
    says_why = any(words in card_of(run) for words in reasons)
    if says_why is (first.cause in (verdict.cause, *verdict.tied_with)):
        yield f"{first.what} is against {first.cause}, the verdict is {verdict.bottleneck}: {card_of(run)}"


def balanced_is_said_exactly_where_nothing_brings_5_percent(run: Told) -> Iterator[str]:
    faster = [each for each in run.model.ranking.actions if each.kind not in KEEPING]
    if run.verdict.bottleneck == "balanced" and faster:
        yield f"balanced, and {faster[0].what} brings {faster[0].gain_ratio.value:.1%}"
    for each in faster:
        if each.gain_ratio.value < 0.05:
            yield f"{each.what} brings {each.gain_ratio.value:.1%} and is listed"


def a_cause_costs_what_the_best_action_against_it_brings_or_more(run: Told) -> Iterator[str]:
    losses = {loss.cause: loss.gain_ratio for loss in run.verdict.losses}
    # Colocated GPUs are another kind of run, and remove no cause of this one.
    for each in run.model.ranking.actions:
        loss = losses.get(each.cause)
        if each.kind in KEEPING or (each.what == "colocated" and loss is not None):
            continue
        if loss is None or loss.value < each.gain_ratio.value - _ROUNDING:
            yield f"{each.what} brings {each.gain_ratio.value:.3f}, and all of {each.cause} costs {loss}"


def no_rate_is_above_the_bound(run: Told) -> Iterator[str]:
    model = run.model
    most = model.gap.bound_tokens_per_s * (1.0 + _ROUNDING)
    rates = {each.layout: each.tokens_per_s for each in (model.forecasts.today, *model.forecasts.others)}
    yield from (f"{layout} has {rate}, the bound is {most}" for layout, rate in rates.items() if (rate or 0.0) > most)
    measured = run.observed.trained_tokens_per_s
    if measured > most:
        yield f"{measured} were measured, the bound is {most}"
    for each in model.ranking.actions:
        if each.kind != "fix" and measured * (1.0 + each.gain_ratio.value) > most:
            yield f"{each.what} trains {measured * (1.0 + each.gain_ratio.value)}, the bound is {most}"


def no_action_makes_the_same_trainers_faster_than_trainers_that_never_wait(run: Told) -> Iterator[str]:
    model, trainers = run.model, run.observed.trainer_gpus
    ceiling = trainer_rate_bound(run.observed, len(model.calibration.draws), publishing=False)
    for each in model.ranking.actions:
        is_of_trainers = each.what in ("trainer_speed", "checkpoints", "colocated")
        moves_gpus = isinstance(each.after, Layout) and each.after.trainer_gpus != trainers
        # Of longer samples, the same trainers do more tokens in the same time.
        drops_others = each.price.dropped_ratio != each.price_before.dropped_ratio
        if ceiling is None or is_of_trainers or moves_gpus or drops_others:
            continue
        if each.gain_ratio.value > ceiling.max() - 1.0 + _ROUNDING:
            yield f"{each.what} brings {each.gain_ratio.value:.1%}, no wait at all {ceiling.max() - 1.0:.1%}"


def the_bars_add_up_from_the_bound_to_what_was_measured(run: Told) -> Iterator[str]:
    gap, measured = run.model.gap, run.observed.trained_tokens_per_s
    if gap.achieved_tokens_per_s != measured:
        yield f"{gap.achieved_tokens_per_s} is shown, {measured} were measured"
    if abs(gap.bound_tokens_per_s - sum(each.lost_tokens_per_s for each in gap.steps) - measured) > 1e-12 * measured:
        yield "the bars do not add up"
    for each in gap.steps:
        if each.cause != "unexplained" and each.lost_tokens_per_s < 0.0:
            yield f"{each.cause} costs less than nothing"


def the_rate_of_today_is_the_measured_one(run: Told) -> Iterator[str]:
    shown, measured = run.model.forecasts.today.tokens_per_s or 0.0, run.observed.trained_tokens_per_s
    if abs(shown / measured - 1.0) > _ROUNDING:
        yield f"{shown} is shown, {measured} were measured"


def the_staleness_of_today_is_the_measured_one(run: Told) -> Iterator[str]:
    shown, by_age = run.model.forecasts.today.staleness, run.observed.staleness
    mean = sum(age * tokens for age, tokens in by_age) / sum(tokens for _, tokens in by_age)
    oldest = np.repeat(*np.array(run.observed.oldest_staleness).T)
    p95 = int(np.quantile(oldest, 0.95, method="inverted_cdf"))
    is_off = shown is None or abs(shown.token_mean - mean) > _ROUNDING
    if shown is None or is_off or (shown.sample_p95, shown.sample_max) != (p95, int(oldest.max())):
        yield f"{shown} is shown, {mean}, {p95} and {oldest.max()} were measured"


def a_remedy_for_the_balance_of_both_sides_is_the_first_action(run: Told) -> Iterator[str]:
    ranked = run.model.ranking.actions
    for rule in RULES if ranked else ():
        told_remedy = findings.remedy(Finding(rule.name, "warning", 1.0, {}, None, None), ranked)
        if rule.is_ranked and not told_remedy.startswith("First "):
            yield f"{rule.name} says {told_remedy!r} beside {ranked[0].what}"


def a_recommended_layout_is_the_first_of_the_changes(run: Told) -> Iterator[str]:
    model = run.model
    changes = [each for each in model.ranking.actions if each.kind == "change" and isinstance(each.after, Layout)]
    best = model.recommendation.best.layout
    if model.recommendation.advice == "change" and (not changes or changes[0].after != best):
        yield f"{best} is recommended, the first change is {changes[:1]}"


def a_change_is_likely_and_actions_stand_in_their_groups(run: Told) -> Iterator[str]:
    listed = [each for each in run.model.ranking.actions if each.kind not in KEEPING]
    for each in listed:
        if each.kind == "change" and (each.gains >= 0.05).mean() < 0.9:
            yield f"{each.what} is a change, {(each.gains >= 0.05).mean():.0%} likely"
    kinds = [(each.is_staler, each.takes_engineering, each.kind != "change") for each in listed]
    gains = [each.gain_ratio.value for each in listed]
    if kinds != sorted(kinds):
        yield f"the actions are out of order: {kinds}"
    # One that gains a little less than a later one may come first: it cannot cost throughput, or keeps samples fresher.
    for at, kind in enumerate(kinds):
        behind = max(
            (gains[later] - gains[at] for later in range(at + 1, len(kinds)) if kinds[later] == kind), default=0
        )
        if behind > 0.02 + _ROUNDING:
            yield f"{listed[at].what} gains {behind:.3f} less than a later action of its kind: {gains}"


LAWS: Final[tuple[Callable[[Told], Iterator[str]], ...]] = (
    first_action_belongs_to_a_named_cause_or_the_card_says_why_not,
    balanced_is_said_exactly_where_nothing_brings_5_percent,
    a_cause_costs_what_the_best_action_against_it_brings_or_more,
    no_rate_is_above_the_bound,
    no_action_makes_the_same_trainers_faster_than_trainers_that_never_wait,
    the_bars_add_up_from_the_bound_to_what_was_measured,
    the_rate_of_today_is_the_measured_one,
    the_staleness_of_today_is_the_measured_one,
    a_remedy_for_the_balance_of_both_sides_is_the_first_action,
    a_recommended_layout_is_the_first_of_the_changes,
    a_change_is_likely_and_actions_stand_in_their_groups,
)


@pytest.mark.parametrize(
    "seeds",
    [range(0, RUNS, 3 * BLOCKS), *(nightly(range(block, RUNS, BLOCKS)) for block in range(BLOCKS))],
    ids=lambda seeds: f"from {seeds.start} by {seeds.step}",
)
def test_the_laws_hold_of_every_generated_run(seeds: range) -> None:
    with few_draws():
        runs = {seed: told(seed) for seed in seeds}
    modeled = {seed: run for seed, run in runs.items() if not isinstance(run.model, NoModelResult)}
    broken = [
        f"{law.__name__}, seed {seed} ({run.drawn.kind}): {what}"
        for seed, run in modeled.items()
        for law in LAWS
        for what in law(run)
    ]
    assert not broken, "\n".join(broken)
    # A law that is asked of few kinds of run holds of nothing.
    assert len(modeled) >= 0.9 * len(runs)
    assert sum(bool(run.model.ranking.actions) for run in modeled.values()) >= 0.6 * len(runs)
    assert len({run.verdict.bottleneck for run in modeled.values()}) >= 3
    assert {"change", "keep"} <= {run.model.recommendation.advice for run in modeled.values()}
