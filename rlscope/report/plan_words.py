"""What a plan comes to, in words: the layout to start with and why, what the answer rests on, what to measure first."""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope.model.forecast import Exclusion, Forecast, Spread
from rlscope.model.plan import Planned, gain_over
from rlscope.model.plan_sweep import coarse_granularity
from rlscope.model.planned import Unknown
from rlscope.model.recommendation import WORTHWHILE_RATIO, Reason
from rlscope.report import advice, numbers
from rlscope.report.outlook_names import EXCLUSIONS, REASONS, REGIMES

_SHARE_OF_NOTHING: Final = 0.005
"""A change below half a per cent is none, and no reason to measure anything."""
_EXCLUDED_SHOWN: Final = 4


class UnknownWords(NamedTuple):
    """One thing that is not known before a run."""

    name: str
    measure: str
    """What to run to know it, as a command without a full stop."""


UNKNOWNS: Final[Mapping[Unknown, UnknownWords]] = {
    "weight_bandwidth": UnknownWords("speed of small batches", "time an engine with a few requests"),
    "compute": UnknownWords("speed of large batches", "time an engine with as many requests as it holds"),
    "kv_bandwidth": UnknownWords("cost of long contexts", "time an engine with long contexts"),
    "pass_overhead": UnknownWords("time between passes", "time an engine with one request"),
    "curve_shape": UnknownWords("speed of medium batches", "time an engine at several batch sizes"),
    "prefill": UnknownWords("speed of prefill", "time an engine on prompts alone"),
    "training_rate": UnknownWords("training rate", "time a few training steps on synthetic samples"),
    "trainer_scaling": UnknownWords("scaling of training", "time training steps with two numbers of GPUs"),
    "weight_update": UnknownWords("time of a weight update", "time one publication of weights"),
    "lengths": UnknownWords("response lengths", "sample a few hundred responses"),
}
_REASONS: Final[Mapping[Reason, str]] = {
    **REASONS,
    "worthwhile": "It is worth the change, and nine to one or better that it helps.",
    "unsure": "Another layout may be faster, but the plan does not say so surely enough.",
}
"""Why a present layout is kept or left."""


class PlanRow(NamedTuple):
    """One layout."""

    mark: str
    layout: str
    rate: str
    """With its interval where it was drawn."""
    odds: str
    """Of being the fastest; empty where it was not drawn."""
    staleness: str
    step: str
    remark: str
    """What it waits for, or why it is out of the question."""
    excluded: bool


class UnknownRow(NamedTuple):
    """One thing that is not known."""

    name: str
    rate: str
    regret: str


def headline(planned: Planned) -> str:
    """The advice as one short sentence, without a full stop."""
    best = planned.best
    if best is None:
        return f"No layout of these {numbers.counted(planned.plan.gpus, 'GPU', 'GPUs')} can be used"
    words = advice.layout_words(best.layout)
    if planned.present is None:
        return f"Start with {words}"
    return f"Keep {words}" if best is planned.present else f"Use {words}"


def why(planned: Planned) -> list[str]:
    """Why this layout, how sure that is, and what stands beside it; one sentence or two each."""
    if planned.best is None:
        return _why_none(planned)
    lines = [_rate_sentence(planned, planned.best), _odds_sentence(planned, planned.best)]
    return [*lines, _bound_sentence(planned, planned.best), _synchronous_sentence(planned, planned.best)]


def plan_rows(planned: Planned, shown: int) -> list[PlanRow]:
    """The best layout first, then the fastest others, then a few of those that are out of the question."""
    best = [] if planned.best is None else [planned.best]
    usable = [each for each in planned.candidates if each.excluded is None and each is not planned.best]
    ordered = [*best, *usable]
    kept = ordered[:shown]
    if planned.present is not None and planned.present not in kept:
        kept.append(planned.present)
    excluded = [each for each in planned.candidates if each.excluded and each is not planned.present]
    return [_row(planned, each) for each in (*kept, *excluded[: shown if best == [] else _EXCLUDED_SHOWN])]


def sweep_lines(planned: Planned, left_out: int) -> list[str]:
    """What of the sweep is not in its rows; left_out: candidates that are not."""
    lines = [f"{numbers.counted(left_out, 'split is', 'splits are')} not shown: slower, or out of the question."]
    step = coarse_granularity(planned.plan).gpus_per_trainer_replica
    if step != planned.plan.granularity.gpus_per_trainer_replica:
        lines.append(f"Splits were tried in steps of {numbers.counted(step, 'trainer GPU', 'trainer GPUs')}.")
    if planned.simulated:
        simulated = numbers.counted(len(planned.simulated), "layout was", "layouts were")
        lines.append(f"{simulated} simulated event by event, where a formula is not to be trusted.")
    return lines if left_out else lines[1:]


def unknown_rows(planned: Planned) -> list[UnknownRow]:
    """What is not known, what matters most first."""
    return [
        UnknownRow(
            UNKNOWNS[each.unknown].name,
            _range(each.rate_ratio),
            "nothing" if each.regret_ratio < _SHARE_OF_NOTHING else numbers.percent(each.regret_ratio),
        )
        for each in planned.unknown_costs
    ]


def measure_first(planned: Planned) -> str | None:
    """What to measure before the layout is settled, as a sentence; None where nothing changes it."""
    first = next(iter(planned.unknown_costs), None)
    if first is None:
        return None
    words = UNKNOWNS[first.unknown]
    if first.regret_ratio < _SHARE_OF_NOTHING:
        return "No single one of them would change the layout by much."
    return f"The layout depends most on the {words.name}: {words.measure}, write it into the plan and plan again."


def _range(change_ratio: Spread) -> str:
    low, high = numbers.signed_percent(change_ratio.low), numbers.signed_percent(change_ratio.high)
    return "nothing" if max(abs(change_ratio.low), abs(change_ratio.high)) < _SHARE_OF_NOTHING else f"{low} to {high}"


def _rate_sentence(planned: Planned, best: Forecast) -> str:
    rate = advice.rate_of(best, planned.present)
    text = numbers.NO_DATA if rate is None else numbers.with_interval(numbers.tokens_per_second, *rate)
    waits = "" if best.pace is None else f" It waits most for: {REGIMES[best.pace.regime]}."
    return f"It should train {text}; the interval holds 90% of the cases that the plan leaves possible.{waits}"


def _odds_sentence(planned: Planned, best: Forecast) -> str:
    if planned.advice is not None:
        return " ".join([_REASONS[planned.advice.reason], *_beyond_cap(planned, best)])
    odds = numbers.percent(planned.best_probability.get(best.layout))
    text = f"It is the fastest split in {odds} of those cases."
    second = next((each for each in planned.candidates if each is not best and each.excluded is None), None)
    gain = None if second is None else gain_over(best, second)
    if second is None or gain is None:
        return text
    words = advice.layout_words(second.layout)
    if gain.low < 0.0 < gain.high and abs(gain.median) < WORTHWHILE_RATIO:
        return f"{text} {words[0].upper()}{words[1:]} are about as fast: over them it gains {advice.gain_words(gain)}."
    return f"{text} Over the next, {words}, it gains {advice.gain_words(gain)}."


def _beyond_cap(planned: Planned, best: Forecast) -> list[str]:
    """A warning where a layout that is kept does not keep the cap: it is compared with the others all the same."""
    cap, staleness = planned.plan.most_staleness, best.staleness
    if cap is None or best is not planned.present or (staleness is not None and staleness.sample_p95 <= cap):
        return []
    return [f"It does not keep the cap of {cap} on staleness."]


def _bound_sentence(planned: Planned, best: Forecast) -> str:
    bound = planned.bound.trained_tokens_per_s
    reached = numbers.percent(None if best.tokens_per_s is None else best.tokens_per_s / bound)
    rate = numbers.tokens_per_second(best.tokens_per_s)
    return (
        f"With every quantity at its median it trains {rate}, {reached} of the most that these GPUs could then do, "
        f"{numbers.tokens_per_second(bound)}."
    )


def _synchronous_sentence(planned: Planned, best: Forecast) -> str:
    turns = planned.synchronous
    if turns is None or best.tokens_per_s is None:
        return "Taking turns on all GPUs is not possible: no engine fits."
    gain = numbers.signed_percent(best.tokens_per_s / turns.trained_tokens_per_s - 1.0)
    rate = numbers.tokens_per_second(turns.trained_tokens_per_s)
    return f"Taking turns on all GPUs would then train {rate}: running asynchronously brings {gain}."


def _why_none(planned: Planned) -> list[str]:
    reasons: Counter[Exclusion] = Counter(each.excluded for each in planned.candidates if each.excluded is not None)
    counted = (f"{EXCLUSIONS[reason]} ({numbers.counted(n, 'split', 'splits')})" for reason, n in reasons.items())
    lines = [f"Of all splits: {', '.join(counted)}.", *(_memory_sentences(planned) if "kv_memory" in reasons else [])]
    stale = [each for each in planned.candidates if each.excluded == "too_stale" and each.staleness is not None]
    if stale:
        least = min(stale, key=lambda each: each.staleness.sample_p95 if each.staleness else 0)
        p95 = numbers.versions(least.staleness.sample_p95 if least.staleness else None)
        lines.append(f"The least stale, {advice.layout_words(least.layout)}, has 95% of its samples within {p95}.")
    if planned.synchronous is not None:
        rate = numbers.tokens_per_second(planned.synchronous.trained_tokens_per_s)
        lines.append(f"Taking turns on all GPUs would train {rate}, with every token at the newest version.")
    return lines


def _memory_sentences(planned: Planned) -> list[str]:
    workload = planned.plan.workload
    longest = numbers.tokens(workload.prompt_tokens + workload.lengths.max_tokens)
    held = numbers.tokens(planned.plan.kv_capacity_tokens)
    return [
        f"An engine holds {held} of KV cache, and a prompt with the longest response takes {longest}: engines of more "
        "GPUs or a lower cap_tokens make it fit."
    ]


def _row(planned: Planned, forecast: Forecast) -> PlanRow:
    layout, rate, pace = forecast.layout, advice.rate_of(forecast, planned.present), forecast.pace
    drawn = forecast.drawn_tokens_per_s is not None
    mark = "best" if forecast is planned.best else ""
    return PlanRow(
        mark=" ".join(filter(None, ("present" if forecast is planned.present else "", mark))),
        layout=f"{layout.trainer_gpus} : {layout.sampler_gpus} × {numbers.count(layout.running_per_engine)}",
        rate="" if rate is None else numbers.with_interval(numbers.tokens_per_second, *rate),
        odds=numbers.percent(planned.best_probability.get(layout)) if drawn else "",
        staleness=numbers.NO_DATA if forecast.staleness is None else numbers.count(forecast.staleness.sample_p95),
        step="" if pace is None else numbers.duration(pace.step_s),
        remark=EXCLUSIONS[forecast.excluded] if forecast.excluded else "" if pace is None else REGIMES[pace.regime],
        excluded=forecast.excluded is not None,
    )
