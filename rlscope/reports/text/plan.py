"""A plan's result in words: the layout to start with and why, the assumptions, and what to measure first."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from rlscope import format as fmt
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.layouts import Exclusion, Forecast, StepTiming
from rlscope.model.forecast.plan import PlanResult, hours_of
from rlscope.model.forecast.plan_prior import PlanInputs, Unknown, engine_prior
from rlscope.model.forecast.price import Price
from rlscope.model.forecast.recommend import WORTHWHILE_RATIO, Reason
from rlscope.model.forecast.result import TimeAndCost
from rlscope.planning.schema import PlanFile
from rlscope.reports.blocks import Block, Bullets, Paragraph, Part, Table
from rlscope.reports.text import advice
from rlscope.reports.text.actions import gain_words, layout_words, split_words
from rlscope.reports.text.model import time_words
from rlscope.reports.text.names import EXCLUSIONS, REASONS
from rlscope.reports.text.price import costly_words

_NOTHING_MEASURED: Final = (
    "Estimated from data sheets, nothing was measured: often off by a third or more. Record about 20 steps and run "
    "`rlscope analyze`."
)

_NODE_GPUS: Final = 8
"""GPUs of a usual node; the cost of larger engines is in `benchmarks/published_steps.txt`."""


def assumption_lines(planned: PlanResult) -> list[str]:
    """Device, model, lengths, decoding, training and weight updates, as the plan gives them."""
    plan = planned.plan
    lines = [_device(plan), _model(planned), _lengths(plan), _decoding(planned), _training(planned), _updates(planned)]
    lines.append("Engines are equally fast, and response lengths do not change.")
    if plan.granularity.gpus_per_engine > _NODE_GPUS:
        lines.append(
            f"Engines of {plan.granularity.gpus_per_engine} GPUs span nodes, and latency between nodes is not counted: "
            "steps of published runs with such engines took 1.2 to 2.2 times as long as planned."
        )
    return lines


def time_of(planned: PlanResult, file: PlanFile) -> TimeAndCost | None:
    """Time and cost of the whole run in the best layout; None if there is none, or if the plan does not give steps."""
    hours = None if file.batch.total_steps is None else hours_of(planned, file.batch.total_steps)
    return None if hours is None else TimeAndCost.of(hours, planned.plan.gpus, file.price.gpu_hour_price)


def cost_line(planned: PlanResult, file: PlanFile) -> str | None:
    """Time and price of the whole run in the best layout; None if they are unknown."""
    if (time := time_of(planned, file)) is None:
        return None
    money = fmt.money(time.gpu_hours * 3600.0, file.price.gpu_hour_price, file.price.currency)
    spent = ", ".join(filter(None, (*time_words(time), money)))
    return f"Predicted time for {fmt.counted(file.batch.total_steps, 'step')}: {spent}."


def _device(plan: PlanInputs) -> str:
    device = plan.device
    peak, bandwidth = fmt.in_unit(device.bf16_flop_per_s, "FLOP/s"), fmt.size(device.bandwidth_bytes_per_s)
    return (
        f"{fmt.counted(plan.gpus, 'GPU')}, {device.name}: {peak} dense bf16, {bandwidth}/s memory "
        f"bandwidth, {fmt.size(device.memory_bytes)} each."
    )


def _model(planned: PlanResult) -> str:
    plan = planned.plan
    shape, gpus = plan.shape, plan.granularity.gpus_per_engine
    token_bytes = shape.kv_bytes_per_token(gpus)
    active = f", {fmt.si(shape.active_parameters)} active per token" if shape.active_parameters else ""
    return (
        f"{fmt.si(shape.parameters)} parameters{active}. The KV cache of an engine of "
        f"{fmt.counted(gpus, 'GPU')} holds {fmt.tokens(plan.kv_capacity_tokens)} at {fmt.size(token_bytes)} "
        f"per token, enough for {fmt.counted(int(planned.kv_running), 'request')} with few preemptions."
    )


def _lengths(plan: PlanInputs) -> str:
    law, workload = plan.workload.lengths, plan.workload
    cap = law.max_output_tokens
    capped = "" if cap is None else f", {fmt.percent(law.capped_ratio)} of them at the cap of {cap:,}"
    prompts = fmt.tokens(workload.prompt_tokens)
    law_from = "lognormal" if plan.lengths_from is None else f"as recorded in {plan.lengths_from}"
    return f"Responses: mean {fmt.tokens(law.mean_tokens)}{capped}; lengths {law_from}. Prompts: {prompts}."


def _decoding(planned: PlanResult) -> str:
    decode, launches = planned.plan.decode, engine_prior(planned.plan).overhead_s
    return (
        f"Decode passes reach {fmt.percent(decode.weight_bandwidth_ratio)} of memory bandwidth on weights, "
        f"{fmt.percent(decode.kv_bandwidth_ratio)} on the KV cache, and {fmt.percent(decode.compute_ratio)} of peak "
        f"compute. Launching the layers of a pass takes {fmt.duration(launches.median)}."
    )


def _training(planned: PlanResult) -> str:
    guess, trainer = planned.plan.training, planned.calibration.system.trainer
    by = "as stated" if guess.tokens_per_gpu_s is not None else f"MFU {fmt.percent(guess.mfu_ratio.median)}"
    if guess.tokens_per_gpu_s is None and guess.routing_s_per_token is not None:
        by += f" plus {fmt.duration(guess.routing_s_per_token.median)} of expert routing per token"
    seen = fmt.counted(trainer.seen_gpus, "GPU")
    power = fmt.significant(guess.scaling_exponent)
    power += f" ± {fmt.significant(guess.scaling_exponent_sd)}" if guess.scaling_exponent_sd else ""
    return (
        f"Training runs at {fmt.tokens_per_second(trainer.tokens_per_gpu_s)} per GPU on {seen} ({by}) and scales with "
        f"GPUs to the power {power}. Weights, gradients and optimizer state take {fmt.size(guess.state_bytes)}."
    )


def _updates(planned: PlanResult) -> str:
    update = planned.calibration.system.update
    seconds = max(update.engine_pause_s, update.trainer_blocked_s, update.delay_s)
    if seconds == 0.0:
        return "Weight updates are free."
    held_s = {"engines": update.engine_pause_s, "trainers": update.trainer_blocked_s}
    paused = " and ".join(name for name, each_s in held_s.items() if each_s > 0.0) or "nothing"
    assumed = "" if planned.plan.update.is_stated else ", the usual time for such weights (a seventh to 7 times that)"
    return f"A weight update takes {fmt.duration(seconds)}{assumed}, and pauses {paused}."


_NEGLIGIBLE_RATIO: Final = 0.005
"""Smaller changes count as none and are no reason to measure anything."""
_LAYOUTS_SHOWN: Final = 10
_EXCLUDED_SHOWN: Final = 4


UNKNOWNS: Final[Mapping[Unknown, tuple[str, str]]] = {
    "weight_bandwidth": ("speed of small batches", "time an engine with a few requests"),
    "compute": ("speed of large batches", "time an engine with as many requests as fit"),
    "kv_bandwidth": ("cost of long contexts", "time an engine with long contexts"),
    "pass_overhead": ("time to launch a pass", "time an engine with one request"),
    "curve_shape": ("speed of medium batches", "time an engine at several batch sizes"),
    "prefill": ("speed of prefill", "time an engine on prompts only"),
    "training_rate": ("training speed", "time a few training steps on synthetic samples"),
    "expert_routing": ("cost of expert routing", "time a few training steps on synthetic samples"),
    "trainer_scaling": ("scaling of training", "time training steps on two numbers of GPUs"),
    "weight_update": ("time of a weight update", "time one publication of weights"),
    "lengths": ("response lengths", "sample a few hundred responses"),
}
"""Quantities that are unknown before a run: the name, and how to measure it, as an imperative."""
_REASONS: Final[Mapping[Reason, str]] = {
    **REASONS,
    "worthwhile": "Worth the change: at least 90% likely to be faster.",
    "unsure": "Another layout may be faster, but the evidence is too weak.",
}
"""Why the present layout is kept or changed."""


_NOTHING_DROPPED: Final = Price(dropped_ratio=Estimate(0.0, 0.0, 0.0), longest_trained_ratio=Estimate(1.0, 1.0, 1.0))


def plan_blocks(planned: PlanResult, file: PlanFile) -> list[Block]:
    """Return the whole answer."""
    lines = [*why(planned), *filter(None, [cost_line(planned, file)])]
    answer = [
        Paragraph(f"{headline(planned)}.", "headline"),
        *map(Paragraph, lines),
        Paragraph(_NOTHING_MEASURED, "note"),
    ]
    return [
        Part("Plan", answer, "framed" if planned.best is not None else "alarm"),
        _layouts_part(planned),
        *([_unknowns_part(planned)] if planned.unknown_costs else []),
        Part("Assumptions", [Bullets(assumption_lines(planned), "·")]),
    ]


def headline(planned: PlanResult) -> str:
    """The recommendation as one short sentence, without a full stop."""
    best = planned.best
    if best is None:
        return f"No layout of these {fmt.counted(planned.plan.gpus, 'GPU')} is feasible"
    words = layout_words(best.layout)
    if planned.present is None:
        return f"Start with {words}"
    return f"Keep {words}" if best is planned.present else f"Use {words}"


def why(planned: PlanResult) -> list[str]:
    """The rate, the odds and the synchronous baseline; one or two sentences each."""
    if planned.best is None:
        return _why_none(planned)
    lines = [_rate_sentence(planned, planned.best), *_scaling_sentences(planned, planned.best)]
    return [*lines, _odds_sentence(planned, planned.best), _synchronous_sentence(planned, planned.best)]


def _layouts_part(planned: PlanResult) -> Part:
    shown = shown_layouts(planned)
    rows, faint = [_row(planned, each) for each in shown], {n for n, each in enumerate(shown) if each.excluded}
    columns, cells = [*rows[0]], [[*row.values()] for row in rows]
    table = Table(
        "Layouts", columns, cells, numbers=frozenset({1, 2, 3, 4, 5}), wide=frozenset({5}), faint=frozenset(faint)
    )
    left_out = len(planned.candidates) - len(rows)
    note = f"{fmt.counted(left_out, 'split')} not shown: slower or infeasible."
    return Part("Layouts", [table, *([Paragraph(note, "note")] if left_out else [])])


def shown_layouts(planned: PlanResult) -> list[Forecast]:
    """Return the best layout, the fastest others, the present one, then a few infeasible ones."""
    best, present = planned.best, planned.present
    usable = [each for each in planned.candidates if each.excluded is None and each is not best]
    kept = [*([] if best is None else [best]), *usable][:_LAYOUTS_SHOWN]
    if present is not None and present not in kept:
        kept.append(present)
    excluded = [each for each in planned.candidates if each.excluded and each is not present]
    return [*kept, *excluded[: _LAYOUTS_SHOWN if best is None else _EXCLUDED_SHOWN]]


def _unknowns_part(planned: PlanResult) -> Part:
    """Return the unknowns, the most important first, and which of them to measure."""
    title, columns = "Uncertainties", ("", "effect on\nthroughput", "cost of not\nknowing it")
    rows = [
        (
            UNKNOWNS[each.unknown][0],
            _range(each.rate_ratio),
            "none" if each.regret_ratio < _NEGLIGIBLE_RATIO else fmt.percent(each.regret_ratio),
        )
        for each in planned.unknown_costs
    ]
    table, first = Table(title, columns, rows, numbers=frozenset({1, 2})), planned.unknown_costs[0]
    name, measure = UNKNOWNS[first.unknown]
    said = f"Largest uncertainty: {name}. To reduce it, {measure} and update the plan."
    if first.regret_ratio < _NEGLIGIBLE_RATIO:
        said = "No single measurement would change the recommended layout much."
    return Part(title, [table, Paragraph(said, "note")])


def _range(change_ratio: Estimate) -> str:
    low, high = fmt.gain(change_ratio.low), fmt.gain(change_ratio.high)
    return "none" if max(abs(change_ratio.low), abs(change_ratio.high)) < _NEGLIGIBLE_RATIO else f"{low} to {high}"


def _rate_sentence(planned: PlanResult, best: Forecast) -> str:
    rate = advice.rate_of(best, planned.present)
    text = fmt.NO_DATA if rate is None else fmt.with_interval(fmt.tokens_per_second, *rate)
    idle = "" if best.timing is None else " Trainers are idle {} of the time, samplers {}.".format(*_idle(best.timing))
    price = costly_words(best.price, _NOTHING_DROPPED)
    costs = f" This layout {price}." if price else ""
    return f"Predicted throughput: {text} (median and 90% interval of the draws).{idle}{costs}"


def _idle(timing: StepTiming) -> tuple[str, str]:
    return fmt.percent(timing.trainer_idle_ratio), fmt.percent(timing.sampler_idle_ratio)


def _scaling_sentences(planned: PlanResult, best: Forecast) -> list[str]:
    """Return the small gain over fewer GPUs, and whether the batch is too small for them; empty if large enough."""
    scaling, rate, gpus = planned.scaling, advice.rate_of(best, planned.present), planned.plan.gpus
    if scaling is None or rate is None:
        return []
    times, fewer = fmt.significant(gpus / scaling.fewer_gpus, 2), fmt.count(scaling.fewer_gpus)
    few = fmt.tokens_per_second(rate.value / (1.0 + scaling.gain_ratio))
    change = fmt.percent(abs(scaling.gain_ratio))
    gains = f"gain only {change}" if scaling.gain_ratio >= 0 else f"lose {change}"
    said = f"{times} times the GPUs {gains}: {fewer} would train about {few} with the same batch."
    if not scaling.batch_is_too_small:
        return [said]
    samples, larger = planned.calibration.system.workload.samples_per_step, fmt.count(scaling.larger_batch)
    more = fmt.tokens_per_second(rate.value * (1.0 + scaling.larger_batch_gain_ratio))
    return [
        f"{said} The batch of {fmt.count(samples)} samples is too small for {fmt.count(gpus)} GPUs: with {larger} "
        f"samples per step they would train about {more}."
    ]


def _odds_sentence(planned: PlanResult, best: Forecast) -> str:
    if planned.advice is not None:
        cap, staleness = planned.plan.most_staleness, best.staleness
        # The present layout is kept although it is too stale.
        is_kept = cap is not None and best is planned.present and (staleness is None or staleness.sample_p95 > cap)
        beyond = f" The present layout exceeds the staleness cap of {cap}." if is_kept else ""
        return f"{_REASONS[planned.advice.reason]}{beyond}"
    odds = fmt.percent(planned.best_probability.get(best.layout))
    text = f"It is the fastest split in {odds} of draws."
    second = next((each for each in planned.candidates if each is not best and each.excluded is None), None)
    gain = best.gain_over(second)
    if second is None or gain is None:
        return text
    is_tie = gain.low < 0.0 < gain.high and abs(gain.value) < WORTHWHILE_RATIO
    beside = f"{'About as fast' if is_tie else 'Next best'}: {layout_words(second.layout)}"
    return f"{text} {beside}. Gain over that: {gain_words(gain)}."


def _synchronous_sentence(planned: PlanResult, best: Forecast) -> str:
    baseline = planned.synchronous
    if baseline is None or best.tokens_per_s is None:
        return "A synchronous run on all GPUs is not predicted: no engine fits, or groups are filtered."
    gain = fmt.gain(best.tokens_per_s / baseline.trained_tokens_per_s - 1.0)
    rate = fmt.tokens_per_second(baseline.trained_tokens_per_s)
    return f"A synchronous run on all GPUs would reach {rate}; running asynchronously gains {gain} over it."


def _why_none(planned: PlanResult) -> list[str]:
    reasons: Counter[Exclusion] = Counter(each.excluded for each in planned.candidates if each.excluded is not None)
    counted = (f"{EXCLUSIONS[reason]} ({fmt.counted(n, 'split')})" for reason, n in reasons.items())
    lines = [f"Reasons: {', '.join(counted)}.", *([_memory_sentence(planned)] if "kv_memory" in reasons else [])]
    stale = [each for each in planned.candidates if each.excluded == "too_stale"]
    aged = [(each.staleness.sample_p95, layout_words(each.layout)) for each in stale if each.staleness is not None]
    if aged:
        p95, layout = min(aged, key=lambda each: each[0])
        lines.append(f"The least stale layout is {layout}, with a staleness p95 of {fmt.versions(p95)}.")
    if planned.synchronous is not None:
        rate = fmt.tokens_per_second(planned.synchronous.trained_tokens_per_s)
        lines.append(f"A synchronous run on all GPUs would reach {rate} with a staleness of 0.")
    return lines


def _memory_sentence(planned: PlanResult) -> str:
    workload = planned.plan.workload
    longest = fmt.tokens(workload.prompt_tokens + workload.lengths.max_tokens)
    return (
        f"The KV cache of an engine holds {fmt.tokens(planned.plan.kv_capacity_tokens)}; a prompt with the longest "
        f"response takes {longest}. Use more GPUs per engine or a lower max_output_tokens."
    )


def _row(planned: PlanResult, forecast: Forecast) -> dict[str, str]:
    """Return the cells of a layout by the title of their column."""
    layout, rate, timing = forecast.layout, advice.rate_of(forecast, planned.present), forecast.timing
    is_drawn = forecast.drawn_tokens_per_s is not None
    marks = {"present": planned.present, "best": planned.best}
    idle = "" if timing is None else ", ".join(_idle(timing))
    return {
        "": " ".join(mark for mark, marked in marks.items() if forecast is marked),
        "trainer : sampler\nGPUs × max running": f"{split_words(layout)} × {fmt.count(layout.max_running)}",
        "predicted\ntokens/s": "" if rate is None else fmt.with_interval(fmt.si, *rate),
        "fastest\nin": fmt.percent(planned.best_probability.get(layout)) if is_drawn else "",
        "staleness\np95": fmt.NO_DATA if forecast.staleness is None else fmt.count(forecast.staleness.sample_p95),
        "step time": "" if timing is None else fmt.duration(timing.step_s),
        "trainers, samplers\nidle": EXCLUSIONS[forecast.excluded] if forecast.excluded else idle,
    }
