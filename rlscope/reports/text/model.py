"""Tables and sentences of a model result, the same for terminal and page.

Measured against replayed, losses from the upper bound to the measured throughput, and time to finish. The
recommendation is in `advice.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from rlscope import format as fmt
from rlscope.model.causes import Cause
from rlscope.model.forecast.replay import Observable, ObservableName, ObservableUnit, Replay
from rlscope.model.forecast.result import ModelResult, NoModelResult, TimeAndCost, TimeToFinish
from rlscope.reports.blocks import Bar, Bars, Bullets, Paragraph, Part, Table
from rlscope.reports.text.causes import NAMES
from rlscope.reports.text.names import (
    BETTER_THAN_MODEL,
    MEANINGS,
    OTHER_CAUSES,
    WARNINGS,
    other_run_lines,
    preemption_sentence,
    scaling_sentence,
)

_REPLAY: Final = "Measured and replayed, current layout, steady state"
GAP_TITLE: Final = "From the upper bound to the measured throughput, steady state"
# Of the bound: smaller causes share one row.
_SMALL_RATIO: Final = 0.002
# Of the bound: rounding error of a difference of equal rates.
_NOTHING_RATIO: Final = 1e-6


def no_result_sentence(result: NoModelResult) -> str:
    """Why there is no model result."""
    return f"No model result: {result.reason}."


def replay_part(model: ModelResult) -> Part:
    """Return the quantities of the current layout, measured and replayed."""
    columns = ("", "measured", "replayed", "replayed vs\nmeasured")
    scope = "Measured over the steady state; times are shares of all GPUs of that side."
    return Part(
        _REPLAY,
        [
            Table(_REPLAY, columns, [*map(_replay_row, model.replay.compared)], "compared"),
            Paragraph(f"{replay_sentence(model)} {scope}", "note"),
        ],
    )


def replay_sentence(model: ModelResult) -> str:
    """Return the quantities that are off, and by how much the rate is if that is too much."""
    replay, said = model.replay, ["The model replays the current layout with the fitted costs."]
    off = "; ".join(OBSERVABLES[each] for each in replay.out_of_tolerance)
    if not replay.explains:
        said.append(f"The replay does not match this run: {misfit_words(replay)}.")
    if off:
        said.append(f"Off beyond its tolerance: {off}.")
    elif replay.explains:
        said.append("Every quantity is within its tolerance.")
    return " ".join(said)


def misfit_words(replay: Replay) -> str:
    """Return the distance of the replayed rate from the measured one, as a clause."""
    rate = replay.rate_misfit_ratio
    if rate is None:
        return "no rate was replayed"
    return f"the replayed rate is {fmt.signed_percent(rate)} from the measured one"


def _replay_row(observable: Observable) -> tuple[str, str, str, str]:
    """Return name, measured and replayed value, and their difference, which is empty if either is missing."""
    write, difference = _OBSERVABLE_WRITERS[observable.unit], ""
    if observable.misfit_ratio is not None:
        difference = fmt.signed_percent(observable.misfit_ratio)
    elif observable.difference or (observable.unit == "ratio" and observable.difference is not None):
        difference = fmt.signed(write)(observable.difference)
    measured = "not recorded" if observable.measured is None else write(observable.measured)
    replayed = "not predicted" if observable.replayed is None else write(observable.replayed)
    return OBSERVABLES[observable.name], measured, replayed, difference


OBSERVABLES: Final[Mapping[ObservableName, str]] = {
    "tokens_per_s": "training throughput",
    "step_s": "step time",
    "running_per_engine": "running requests per engine",
    "in_flight_samples": "samples in flight (with queued ones)",
    "queued_samples": "queue depth",
    "wait_samples_ratio": "trainers waiting for samples",
    "wait_staleness_cap_ratio": "trainers blocked by the staleness cap",
    "hold_backpressure_ratio": "engines idle: backpressure",
    "hold_staleness_cap_ratio": "engines idle: staleness cap or limit on samples in flight",
    "hold_other_ratio": "engines idle: nothing to do",
    "staleness_mean": "mean token staleness",
    "staleness_p95": "p95 token staleness",
}
_OBSERVABLE_WRITERS: Final[Mapping[ObservableUnit, fmt.Write]] = {
    "tokens/s": fmt.tokens_per_second,
    "s": fmt.duration,
    "requests": fmt.significant,
    "samples": lambda value: f"{fmt.significant(value)} samples",
    "ratio": fmt.percent,
    "versions": fmt.versions,
}


def loss_bars(model: ModelResult, *, has_meanings: bool = False) -> Bars:
    """Return the upper bound, a bar for each loss from the throughput before it to that after it, and the measured one.

    Small causes share one bar, before the unexplained rest. A loss is negative if the run is faster than predicted.
    """
    bound, achieved, steps = model.gap.bound_tokens_per_s, model.gap.achieved_tokens_per_s, model.gap.steps
    large = [step for step in steps if abs(step.lost_tokens_per_s) >= _SMALL_RATIO * bound]
    small_tokens_per_s = sum(step.lost_tokens_per_s for step in steps if step not in large)
    named = [(NAMES[step.cause], MEANINGS[step.cause], step.lost_tokens_per_s) for step in large]
    at = len(named) - any(step.cause == Cause.UNEXPLAINED for step in large)
    named.insert(at, (*OTHER_CAUSES, small_tokens_per_s))
    bars, left = [Bar("upper bound, predicted", fmt.tokens_per_second(bound), 1.0)], bound
    for name, meaning, lost in named:
        before, left = left, left - lost
        if abs(lost) > _NOTHING_RATIO * bound:
            low, high = sorted((left / bound, before / bound))
            change = fmt.signed(fmt.tokens_per_second)(-lost)
            note = BETTER_THAN_MODEL if lost < 0.0 and name != OTHER_CAUSES[0] else meaning
            bars.append(Bar(name, change, high, low, "wait", note if has_meanings else ""))
    # Over the steps that lie completely in steady state.
    rate = fmt.tokens_per_second(achieved)
    return Bars([*bars, Bar("measured, steady state", rate, achieved / bound if bound else 0.0)])


def outlook_parts(model: ModelResult) -> Iterator[Part]:
    """Yield the time for the remaining steps, unless their number is 0 or unknown, then warnings and assumptions."""
    if model.finish is not None:
        yield _finish_part(model.finish)
    yield Part("Warnings and assumptions", [Bullets(remarks(model))])


def _finish_part(finish: TimeToFinish) -> Part:
    title, spans = "Time to finish", {"current layout": finish.current}
    if finish.best is not finish.current:
        spans["recommended layout"] = finish.best
    rows = [
        (
            layout,
            *time_words(time),
            *([] if time.price is None else [fmt.significant(time.price)]),
        )
        for layout, time in spans.items()
    ]
    columns = ("", "time", "GPU time", "price")[: len(rows[0])]
    steps = fmt.counted(finish.remaining_steps, "step")
    said = f"{steps} left on {fmt.counted(finish.gpus, 'GPU')}, at the step time of the steady state"
    price = finish.gpu_hour_price
    said += "." if price is None else f"; priced at {fmt.significant(price)} per GPU-hour."
    return Part(title, [Table(title, columns, rows), Paragraph(said, "note")])


def time_words(time: TimeAndCost) -> tuple[str, str]:
    """Return the time with its interval, and the GPU time."""
    span = fmt.with_interval(fmt.duration, *(each * 3600.0 for each in time.hours))
    return span, fmt.gpu_time(time.gpu_hours * 3600.0)


def gap_sentences(model: ModelResult) -> list[str]:
    """Return the upper bound, the synchronous baseline and what limits the batches, below the losses."""
    told = (_BOUND, _synchronous_sentence(model), _batch_sentence(model), preemption_sentence(model))
    return [sentence for sentence in told if sentence]


_BOUND: Final = (
    "The upper bound divides these GPUs in the best way, fractions included, with any number of running requests. "
    "Read the bars from the bottom: each is what its cause costs once those below it are gone."
)


def _synchronous_sentence(model: ModelResult) -> str | None:
    """Return the throughput of a synchronous run; None if the run is one, or if the model does not reproduce it."""
    rate = model.synchronous_tokens_per_s
    if rate is None or model.calibration.synchronous or not model.replay.explains:
        return None
    return f"A synchronous run on all GPUs would train {fmt.tokens_per_second(rate)}."


def _batch_sentence(model: ModelResult) -> str | None:
    """Return the decoding time lost to small batches; None if it is unknown."""
    efficiency = model.efficiency
    if efficiency is None:
        return None
    requests = fmt.counted(efficiency.efficient_running, "request")
    return (
        f"Batches of {requests} or more decode at 90% or more of the rate of a batch at the limit of "
        f"{fmt.count(model.calibration.layout.max_running)}; smaller ones lost "
        f"{fmt.percent(1.0 - efficiency.efficient_time_ratio)} of the decoding time in steady state."
    )


def remarks(model: ModelResult) -> list[str]:
    """Warnings and assumptions behind the model result; what weakens the recommendation first."""
    calibration = model.calibration
    lines = [WARNINGS[warning] for warning in model.warnings]
    if calibration.synchronous:
        lines.append(
            "This run is synchronous. Every other layout is predicted for an asynchronous run: its gain includes that "
            "change, and its tokens are stale as shown."
        )
    lines += other_run_lines(model)
    lines += [WARNINGS[warning] for warning in (*calibration.warnings, *calibration.curve.warnings)]
    horizons = [each.staleness.horizon_steps for each in model.forecasts.shown if each.staleness]
    if (longest := max(filter(None, horizons), default=None)) is not None:
        steps = fmt.count(round(longest * calibration.steps_per_version))
        lines.append(f"Growing staleness is that after {steps} steps: nothing limits the queue, so it rises further.")
    return [*lines, scaling_sentence(model)]
