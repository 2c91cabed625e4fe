"""What a plan comes to, in words: the layout to start with and why, what the answer rests on, what to measure first.

What the answer to a plan rests on: every figure that was taken for true, in sentences with their numbers.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.model.forecast.layouts import Exclusion, Forecast, Spread
from rlscope.model.forecast.plan import PlanResult, coarse_granularity, gain_over, hours_of
from rlscope.model.forecast.plan_prior import PlanInputs, Unknown
from rlscope.model.forecast.recommend import WORTHWHILE_RATIO, Reason
from rlscope.planning.schema import PlanFile
from rlscope.reports.text import advice
from rlscope.reports.text.names import EXCLUSIONS, REASONS, REGIMES

NOTHING_MEASURED = (
    "Nothing here was measured. Answers from data sheets are often off by a third and more: record some twenty steps, "
    "and ask `rlscope analyze`."
)


def assumption_lines(planned: PlanResult) -> list[str]:
    """Device, model, lengths, decoding, training and updates, as the plan has them."""
    plan = planned.plan
    lines = [_device(plan), _model(planned), _lengths(plan), _decoding(plan), _training(planned), _updates(planned)]
    return [*lines, "Engines are alike, lengths stay as they are, and links between GPUs cost nothing of their own."]


def cost_line(planned: PlanResult, file: PlanFile) -> str | None:
    """How long the whole run takes in the best layout, and its price; None where the plan does not say."""
    steps, price = file.batch.steps, file.price
    hours = None if steps is None else hours_of(planned, steps)
    if steps is None or hours is None:
        return None
    gpu_s = hours.median * planned.plan.gpus * 3600.0
    time = fmt.with_interval(lambda value: fmt.duration(None if value is None else value * 3600.0), *hours)
    money = fmt.money(gpu_s, price.gpu_hour, price.currency)
    text = f"{fmt.counted(steps, 'step', 'steps')} take {time}: {fmt.gpu_time(gpu_s)}"
    return f"{text}, {money}." if money else f"{text}."


def _device(plan: PlanInputs) -> str:
    device = plan.device
    peak, bandwidth = fmt.in_unit(device.bf16_flop_per_s, "FLOP/s"), fmt.size(device.bandwidth_bytes_per_s)
    return (
        f"{fmt.counted(plan.gpus, 'GPU', 'GPUs')}, {device.name}: {peak} in dense bf16, {bandwidth}/s, "
        f"{fmt.size(device.memory_bytes)} each."
    )


def _model(planned: PlanResult) -> str:
    plan = planned.plan
    shape, gpus = plan.shape, plan.granularity.gpus_per_engine
    token_bytes = shape.kv_bytes_per_token(gpus)
    active = f", {fmt.si(shape.active_parameters)} a token" if shape.active_parameters else ""
    return (
        f"{fmt.si(shape.parameters)} parameters{active}; an engine of {fmt.counted(gpus, 'GPU', 'GPUs')} holds "
        f"{fmt.tokens(plan.kv_capacity_tokens)} of KV cache, {fmt.size(token_bytes)} each: "
        f"{fmt.counted(int(planned.kv_running), 'request', 'requests')} safely."
    )


def _lengths(plan: PlanInputs) -> str:
    law, workload = plan.workload.lengths, plan.workload
    capped = "" if law.cap_tokens is None else f", {fmt.percent(law.capped_ratio)} at the cap of {law.cap_tokens:,}"
    prompts = fmt.tokens(workload.prompt_tokens)
    law_from = "lognormal" if plan.lengths_from is None else f"as recorded in {plan.lengths_from}"
    return f"Responses of {fmt.tokens(law.mean_tokens)} on average{capped}, after prompts of {prompts}, {law_from}."


def _decoding(plan: PlanInputs) -> str:
    decode = plan.decode
    return (
        f"Decode passes read weights at {fmt.percent(decode.weight_bandwidth_ratio)} and the KV cache at "
        f"{fmt.percent(decode.kv_bandwidth_ratio)} of the bandwidth, and compute at "
        f"{fmt.percent(decode.compute_ratio)} of the peak."
    )


def _training(planned: PlanResult) -> str:
    guess, trainer = planned.plan.training, planned.calibration.system.trainer
    by = "as stated" if guess.tokens_per_gpu_s is not None else f"{fmt.percent(guess.mfu_ratio.median)} of the peak"
    seen = fmt.counted(trainer.seen_gpus, "GPU", "GPUs")
    power = fmt.significant(guess.scaling_exponent)
    power += f" ± {fmt.significant(guess.scaling_exponent_sd)}" if guess.scaling_exponent_sd else ""
    return (
        f"Training runs at {fmt.tokens_per_second(trainer.tokens_per_gpu_s)} a GPU with {seen}, {by}, and grows as "
        f"their number to the power of {power}; it holds "
        f"{fmt.size(guess.state_bytes)} of weights, gradients and optimizer."
    )


def _updates(planned: PlanResult) -> str:
    update = planned.calibration.system.update
    seconds = max(update.engine_pause_s, update.trainer_blocked_s, update.delay_s)
    if seconds == 0.0:
        return "New weights reach the engines at no cost."
    stopped = [
        name
        for name, held_s in (("engines", update.engine_pause_s), ("trainers", update.trainer_blocked_s))
        if held_s > 0.0
    ]
    held = f"{' and '.join(stopped)} stand still" if stopped else "nothing stands still"
    return f"New weights take {fmt.duration(seconds)}, while {held}."


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


def headline(planned: PlanResult) -> str:
    """The advice as one short sentence, without a full stop."""
    best = planned.best
    if best is None:
        return f"No layout of these {fmt.counted(planned.plan.gpus, 'GPU', 'GPUs')} can be used"
    words = advice.layout_words(best.layout)
    if planned.present is None:
        return f"Start with {words}"
    return f"Keep {words}" if best is planned.present else f"Use {words}"


def why(planned: PlanResult) -> list[str]:
    """Why this layout, how sure that is, and what stands beside it; one sentence or two each."""
    if planned.best is None:
        return _why_none(planned)
    lines = [_rate_sentence(planned, planned.best), _odds_sentence(planned, planned.best)]
    return [*lines, _bound_sentence(planned, planned.best), _synchronous_sentence(planned, planned.best)]


def plan_rows(planned: PlanResult, shown: int) -> list[PlanRow]:
    """The best layout first, then the fastest others, then a few of those that are out of the question."""
    best = [] if planned.best is None else [planned.best]
    usable = [each for each in planned.candidates if each.excluded is None and each is not planned.best]
    ordered = [*best, *usable]
    kept = ordered[:shown]
    if planned.present is not None and planned.present not in kept:
        kept.append(planned.present)
    excluded = [each for each in planned.candidates if each.excluded and each is not planned.present]
    return [_row(planned, each) for each in (*kept, *excluded[: shown if best == [] else _EXCLUDED_SHOWN])]


def sweep_lines(planned: PlanResult, left_out: int) -> list[str]:
    """What of the sweep is not in its rows; left_out: candidates that are not."""
    lines = [f"{fmt.counted(left_out, 'split is', 'splits are')} not shown: slower, or out of the question."]
    step = coarse_granularity(planned.plan).gpus_per_trainer_replica
    if step != planned.plan.granularity.gpus_per_trainer_replica:
        lines.append(f"Splits were tried in steps of {fmt.counted(step, 'trainer GPU', 'trainer GPUs')}.")
    if planned.simulated:
        simulated = fmt.counted(len(planned.simulated), "layout was", "layouts were")
        lines.append(f"{simulated} simulated event by event, where a formula is not to be trusted.")
    return lines if left_out else lines[1:]


def unknown_rows(planned: PlanResult) -> list[UnknownRow]:
    """What is not known, what matters most first."""
    return [
        UnknownRow(
            UNKNOWNS[each.unknown].name,
            _range(each.rate_ratio),
            "nothing" if each.regret_ratio < _SHARE_OF_NOTHING else fmt.percent(each.regret_ratio),
        )
        for each in planned.unknown_costs
    ]


def measure_first(planned: PlanResult) -> str | None:
    """What to measure before the layout is settled, as a sentence; None where nothing changes it."""
    first = next(iter(planned.unknown_costs), None)
    if first is None:
        return None
    words = UNKNOWNS[first.unknown]
    if first.regret_ratio < _SHARE_OF_NOTHING:
        return "No single one of them would change the layout by much."
    return f"The layout depends most on the {words.name}: {words.measure}, write it into the plan and plan again."


def _range(change_ratio: Spread) -> str:
    low, high = fmt.signed_percent(change_ratio.low), fmt.signed_percent(change_ratio.high)
    return "nothing" if max(abs(change_ratio.low), abs(change_ratio.high)) < _SHARE_OF_NOTHING else f"{low} to {high}"


def _rate_sentence(planned: PlanResult, best: Forecast) -> str:
    rate = advice.rate_of(best, planned.present)
    text = fmt.NO_DATA if rate is None else fmt.with_interval(fmt.tokens_per_second, *rate)
    waits = "" if best.pace is None else f" It waits most for: {REGIMES[best.pace.regime]}."
    return f"It should train {text}; the interval holds 90% of the cases that the plan leaves possible.{waits}"


def _odds_sentence(planned: PlanResult, best: Forecast) -> str:
    if planned.advice is not None:
        return " ".join([_REASONS[planned.advice.reason], *_beyond_cap(planned, best)])
    odds = fmt.percent(planned.best_probability.get(best.layout))
    text = f"It is the fastest split in {odds} of those cases."
    second = next((each for each in planned.candidates if each is not best and each.excluded is None), None)
    gain = None if second is None else gain_over(best, second)
    if second is None or gain is None:
        return text
    words = advice.layout_words(second.layout)
    if gain.low < 0.0 < gain.high and abs(gain.median) < WORTHWHILE_RATIO:
        return f"{text} {words[0].upper()}{words[1:]} are about as fast: over them it gains {advice.gain_words(gain)}."
    return f"{text} Over the next, {words}, it gains {advice.gain_words(gain)}."


def _beyond_cap(planned: PlanResult, best: Forecast) -> list[str]:
    """A warning where a layout that is kept does not keep the cap: it is compared with the others all the same."""
    cap, staleness = planned.plan.most_staleness, best.staleness
    if cap is None or best is not planned.present or (staleness is not None and staleness.sample_p95 <= cap):
        return []
    return [f"It does not keep the cap of {cap} on staleness."]


def _bound_sentence(planned: PlanResult, best: Forecast) -> str:
    bound = planned.bound.trained_tokens_per_s
    reached = fmt.percent(None if best.tokens_per_s is None else best.tokens_per_s / bound)
    rate = fmt.tokens_per_second(best.tokens_per_s)
    return (
        f"With every quantity at its median it trains {rate}, {reached} of the most that these GPUs could then do, "
        f"{fmt.tokens_per_second(bound)}."
    )


def _synchronous_sentence(planned: PlanResult, best: Forecast) -> str:
    turns = planned.synchronous
    if turns is None or best.tokens_per_s is None:
        return "Taking turns on all GPUs is not possible: no engine fits."
    gain = fmt.signed_percent(best.tokens_per_s / turns.trained_tokens_per_s - 1.0)
    rate = fmt.tokens_per_second(turns.trained_tokens_per_s)
    return f"Taking turns on all GPUs would then train {rate}: running asynchronously brings {gain}."


def _why_none(planned: PlanResult) -> list[str]:
    reasons: Counter[Exclusion] = Counter(each.excluded for each in planned.candidates if each.excluded is not None)
    counted = (f"{EXCLUSIONS[reason]} ({fmt.counted(n, 'split', 'splits')})" for reason, n in reasons.items())
    lines = [f"Of all splits: {', '.join(counted)}.", *(_memory_sentences(planned) if "kv_memory" in reasons else [])]
    stale = [each for each in planned.candidates if each.excluded == "too_stale" and each.staleness is not None]
    if stale:
        least = min(stale, key=lambda each: each.staleness.sample_p95 if each.staleness else 0)
        p95 = fmt.versions(least.staleness.sample_p95 if least.staleness else None)
        lines.append(f"The least stale, {advice.layout_words(least.layout)}, has 95% of its samples within {p95}.")
    if planned.synchronous is not None:
        rate = fmt.tokens_per_second(planned.synchronous.trained_tokens_per_s)
        lines.append(f"Taking turns on all GPUs would train {rate}, with every token at the newest version.")
    return lines


def _memory_sentences(planned: PlanResult) -> list[str]:
    workload = planned.plan.workload
    longest = fmt.tokens(workload.prompt_tokens + workload.lengths.max_tokens)
    held = fmt.tokens(planned.plan.kv_capacity_tokens)
    return [
        f"An engine holds {held} of KV cache, and a prompt with the longest response takes {longest}: engines of more "
        "GPUs or a lower cap_tokens make it fit."
    ]


def _row(planned: PlanResult, forecast: Forecast) -> PlanRow:
    layout, rate, pace = forecast.layout, advice.rate_of(forecast, planned.present), forecast.pace
    drawn = forecast.drawn_tokens_per_s is not None
    mark = "best" if forecast is planned.best else ""
    return PlanRow(
        mark=" ".join(filter(None, ("present" if forecast is planned.present else "", mark))),
        layout=f"{layout.trainer_gpus} : {layout.sampler_gpus} × {fmt.count(layout.running_per_engine)}",
        rate="" if rate is None else fmt.with_interval(fmt.tokens_per_second, *rate),
        odds=fmt.percent(planned.best_probability.get(layout)) if drawn else "",
        staleness=fmt.NO_DATA if forecast.staleness is None else fmt.count(forecast.staleness.sample_p95),
        step="" if pace is None else fmt.duration(pace.step_s),
        remark=EXCLUSIONS[forecast.excluded] if forecast.excluded else "" if pace is None else REGIMES[pace.regime],
        excluded=forecast.excluded is not None,
    )
