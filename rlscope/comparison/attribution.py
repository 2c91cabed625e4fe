"""Attributes the change of the rate to changed settings and to other measured differences.

The model fitted to the baseline predicts the effect of each cause alone, and of all together, as `rlscope what-if`
does. A cause that the model cannot predict is listed with the reason; if it is the only cause, it is still reported as
the cause. If the baseline's own analysis recommended the change, its predicted gain is compared with the measured one.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Final, Literal

from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.comparison.differences import Differences
from rlscope.comparison.engines import SPEED_RATIO, engine_speed
from rlscope.comparison.facts import (
    ALIKE_RATIO,
    ComparedRun,
    Setting,
    is_same_size,
    one_sided_settings,
    plain,
    same_compute_cost,
    version_steps,
)
from rlscope.comparison.lengths import CAP, LengthChange, cap_input, length_change, scaled
from rlscope.comparison.prices import PromisedPrice, promised_prices
from rlscope.comparison.statistics import Difference, StepSeries, difference
from rlscope.document import LEFT_OUT, computed_field
from rlscope.errors import ImpossibleChangeError
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import SETTINGS, Action, ActionWhat
from rlscope.model.forecast.change import NO_LIMIT, Change
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import what_if
from rlscope.model.system import Layout

CauseKind = Literal["setting", "measured"]
Unpriced = Literal["other_network", "no_model", "not_reproduced", "not_modeled", "cannot_run"]
_LEAST_LOG_RATIO: Final = 0.01
"""Minimum predicted effect of a measured difference on the logarithm of the rate; smaller ones are not listed."""
_UNIMPORTANT: Final = frozenset({"total_steps", "gpu_hour_price", "currency", "total_gpus", "gpus_per_trainer_replica"})
"""Config entries that do not affect the rate; total_gpus is part of the layout."""
_MODELED: Final = (
    "max_running",
    "publish_every",
    CAP,
    "max_staleness",
    "samples_per_step",
    "queue_capacity_samples",
    "max_in_flight_samples",
)
"""Settings that are inputs of the model, by the names of its `Change`."""
_REMOVABLE: Final = frozenset({"queue_capacity_samples", "max_in_flight_samples"})
_COST_OF: Final[Mapping[ActionWhat, str]] = {
    "weight_updates": "weight_updates",
    "checkpoints": "checkpoints",
    "slow_engines": "engine_speed",
    "engine_speed": "engine_speed",
    "trainer_speed": "trainer_speed",
}
"""The measurement that shows whether each fix was made, by action."""
_GPUS: Final = ("trainer_gpus", "sampler_gpus", "colocated_gpus")
_LAYOUT: Final = frozenset({*_GPUS, "max_running"})


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """One cause of the change in the rate, according to A's model."""

    kind: CauseKind
    """setting: the config or the layout changed. measured: a measured quantity changed."""
    name: str
    """A config entry, layout, max_running, publish_every, or "ROLE device"; or the measurement: response_lengths,
    engine_speed, trainer_speed, weight_updates, checkpoints."""
    before: str
    """Value in A."""
    after: str
    """Value in the other run."""
    change: Annotated[Change | None, LEFT_OUT] = None
    """The change as an input of the model; None if the model has none for it."""
    alone_ratio: float | None = None
    """Modeled gain of trained tokens per second from this change alone; None if the model cannot predict it."""
    unpriced_because: Unpriced | None = None
    """Reason why the model predicts no gain. other_network: the runs train different models. no_model: A has no model.
    not_reproduced: the model does not reproduce A's own rate. not_modeled: the model has no such input. cannot_run:
    according to the model, the run could not run with this change. None if a gain is predicted."""

    @classmethod
    def measured(cls, name: str, before: float, after: float, change: Change | None) -> "ChangeCause":
        """Return a measured difference of two numbers, before the model predicts its effect."""
        return cls("measured", name, f"{before:.3g}", f"{after:.3g}", change)


@dataclass(frozen=True, slots=True)
class Promise:
    """The predicted gain of an action that the analysis of A recommended, beside the measured one."""

    rank: int
    """Rank of the action in the recommendation, starting at 1."""
    target: ActionWhat
    """The quantity that the action changes."""
    gain_ratio: Estimate
    """Predicted gain of trained tokens per second, with its 90% interval. For a fix, the gain from the measured part of
    the fix."""
    measured_ratio: float
    """Measured gain."""
    is_alone: bool
    """Whether no other setting changed."""
    is_fix: bool = False
    """Whether the action is a fix (a lower cost or a faster side); the prediction then uses its measured size."""
    prices: tuple[PromisedPrice, ...] = ()
    """Predicted prices of the change beside the measured ones; empty for a fix."""
    is_within_error: bool = False
    """Whether the measured gain, with its 95% interval, may lie within the predicted interval."""

    @computed_field
    @property
    def is_kept(self) -> bool:
        """Whether the measured gain is within the interval."""
        return self.gain_ratio.low <= self.measured_ratio <= self.gain_ratio.high

    @computed_field
    @property
    def missed_by_ratio(self) -> float:
        """Distance of the measured gain from the interval; negative if the gain fell short."""
        if self.measured_ratio > self.gain_ratio.high:
            return self.measured_ratio - self.gain_ratio.high
        return min(0.0, self.measured_ratio - self.gain_ratio.low)


@dataclass(frozen=True, slots=True)
class Attribution:
    """The effect of each cause on the rate."""

    causes: tuple[ChangeCause, ...]
    """The largest effect first; causes that the model cannot predict last."""
    together_ratio: float | None
    """Predicted gain with all causes together; None without any, or if the run could not run with them."""
    promise: Promise | None
    lengths: LengthChange
    """The part of the change of response lengths that a changed cap and dropping explain."""


def attribute(before: ComparedRun, after: ComparedRun, differences: Differences) -> Attribution:
    """Find the causes of the change, and the effect of each that the baseline's model predicts."""
    changes, tokens = setting_changes(before, after), differences.row("response_tokens")
    lengths = length_change(before, after, tokens)
    obstacle = _obstacle(before, after)
    model = None if obstacle else before.modeled
    found = (
        *_setting_causes(before, after, changes, model, lengths),
        *_measured_causes(before, after, model, lengths, tokens.before),
    )
    causes = [each for each in (_priced(cause, model, obstacle) for cause in found) if _is_worth_naming(each)]
    priced = [each.change for each in causes if each.change is not None and each.alone_ratio is not None]
    rate = differences.row("tokens_per_s")
    return Attribution(
        causes=tuple(sorted(causes, key=lambda cause: -_importance(cause))),
        together_ratio=_gain_ratio(model, priced) if model is not None and priced else None,
        promise=_action_promise(before, after, changes, rate) or _fix_promise(before, causes, rate, model),
        lengths=lengths,
    )


def setting_changes(before: ComparedRun, after: ComparedRun) -> dict[str, tuple[Setting, Setting]]:
    """Return both values of every part of the layout, device and config entry that differs; None for one not set."""
    pairs: dict[str, tuple[object, object]] = {
        role: (getattr(before.run, role), getattr(after.run, role)) for role in _GPUS
    }
    if before.max_running is not None and after.max_running is not None:
        pairs["max_running"] = (before.max_running, after.max_running)
    if (published := _publish_every(before, after)) is not None:
        pairs["publish_every"] = published
    devices, other_devices = before.run.devices, after.run.devices
    for role in devices.keys() & other_devices.keys():
        pairs[f"{role} device"] = (devices[role], other_devices[role])
    for name in sorted((before.settings.keys() | after.settings.keys()) - one_sided_settings(before, after)):
        if name not in _UNIMPORTANT:
            pairs.setdefault(name, (before.settings.get(name), after.settings.get(name)))
    settings = {name: (plain(first), plain(then)) for name, (first, then) in pairs.items()}
    return {name: (first, then) for name, (first, then) in settings.items() if first != then}


def _publish_every(before: ComparedRun, after: ComparedRun) -> tuple[int, int] | None:
    """Return the measured steps per version in whole steps, as a setting has them; None if they are alike."""
    spans = version_steps(before, after)
    return None if spans is None else (max(1, round(spans[0])), max(1, round(spans[1])))


def _setting_causes(
    before: ComparedRun,
    after: ComparedRun,
    changes: Mapping[str, tuple[Setting, Setting]],
    model: ModelResult | None,
    lengths: LengthChange,
) -> Iterator[ChangeCause]:
    if not changes.keys().isdisjoint(_GPUS):
        is_split = not (before.run.colocated_gpus or after.run.colocated_gpus)
        split = Change(trainer_gpus=after.run.trainer_gpus, sampler_gpus=after.run.sampler_gpus)
        yield ChangeCause("setting", "layout", _split_text(before), _split_text(after), split if is_split else None)
    for name in dict.fromkeys((*_MODELED, *changes)):
        if name in changes and name not in _GPUS and not is_same_size(name, *changes[name]):
            first, then = changes[name]
            yield ChangeCause("setting", name, _text(first), _text(then), _model_input(name, then, model, lengths))


def _split_text(run: ComparedRun) -> str:
    facts = run.run
    return f"{facts.trainer_gpus}:{facts.sampler_gpus}" + (f":{facts.colocated_gpus}" * bool(facts.colocated_gpus))


def _text(setting: Setting) -> str:
    return "none" if setting is None else str(setting)


def _model_input(name: str, value: Setting, model: ModelResult | None, lengths: LengthChange) -> Change | None:
    """Return the model input for a changed setting; None if the model has no input for the new value."""
    if value is None and name == CAP and model is not None:
        return cap_input(model, None, lengths.of_cap)
    if value is None and name in _REMOVABLE:
        value = NO_LIMIT
    if name not in _MODELED or not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    if name == CAP and model is not None:
        return cap_input(model, value, lengths.of_cap)
    return Change(**{name: value})  # type: ignore[arg-type]


def _measured_causes(
    before: ComparedRun, after: ComparedRun, model: ModelResult | None, lengths: LengthChange, mean: float | None
) -> Iterator[ChangeCause]:
    """Yield the measured differences that no changed setting explains. mean: the baseline's mean length in tokens."""
    if lengths.beyond is not None and mean is not None:
        factor = 1.0 + lengths.beyond
        ends = (f"{mean:.4g}", f"{mean * factor:.4g}")
        yield ChangeCause("measured", "response_lengths", *ends, scaled(model, factor))
    if (training := _training_speed(before, after)) is not None:
        yield ChangeCause.measured("trainer_speed", 1, training, Change(trainer_speed=training))
    if (engines := engine_speed(before, after)) is not None:
        yield ChangeCause.measured("engine_speed", 1, engines, Change(engine_speed=engines))
    if (saving := _different(before, _saving_s(before), _saving_s(after))) is not None:
        yield ChangeCause.measured("checkpoints", *saving, Change(added_checkpoint_s=saving[1] - saving[0]))
    if (update := _different(before, _update_s(before), _update_s(after))) is not None:
        yield ChangeCause.measured("weight_updates", *update, _updates_as_long(before.modeled, *update))


def _training_speed(before: ComparedRun, after: ComparedRun) -> float | None:
    """Return the tokens per GPU-second of training, as a ratio to the baseline's.

    None unless the runs have the same number of training GPUs and similar tokens per step, and the difference is
    significant and at least 5%.
    """
    first, then = _training_series(before), _training_series(after)
    gpus, other_gpus = ((each.run.trainer_gpus, each.run.colocated_gpus) for each in (before, after))
    if first is None or then is None or gpus != other_gpus:
        return None
    fewer, more = sorted(float(each.numerators.mean()) for each in (first, then))
    speed = difference(first, then, "ratio")
    if more > ALIKE_RATIO * fewer or not speed.is_significant or abs(speed.change or 0.0) < SPEED_RATIO:
        return None
    return 1.0 + (speed.change or 0.0)


def _training_series(run: ComparedRun) -> StepSeries | None:
    """Return the processed tokens over the GPU-seconds of training, step by step."""
    if run.table is None or run.table.processed_tokens is None:
        return None
    return StepSeries(run.table.processed_tokens.astype(float), run.table.train_gpu_s)


def _saving_s(run: ComparedRun) -> float | None:
    """Return the seconds per step that trainers spend on checkpoints and evaluation; None if unknown."""
    gpus = run.run.trainer_gpus + run.run.colocated_gpus
    if run.table is None or not run.table.state_gpu_s or not gpus:
        return None
    states = run.table.state_gpu_s.items()
    saving = [gpu_s for key, gpu_s in states if key.role in TRAINER_ROLES and key.state in ("checkpoint", "eval")]
    return math.fsum(float(gpu_s.mean()) for gpu_s in saving) / gpus


def _update_s(run: ComparedRun) -> float | None:
    """Return the seconds that a weight update holds up the side that it holds up longer, as modeled; None if unknown.

    Until engines apply it, both sides go on: that time costs staleness, not throughput.
    """
    update = run.modeled and run.modeled.calibration.system.update
    return max(update.engine_pause_s, update.trainer_blocked_s) if update else None


def _updates_as_long(model: ModelResult | None, before_s: float, after_s: float) -> Change | None:
    """Return the model input for updates that hold a side up for another time; None if the model has no such time."""
    update = model and model.calibration.system.update
    if not update or not (before_s or update.seconds == 0.0):
        return None
    return Change(weight_update_s=update.seconds * after_s / before_s if before_s else after_s)


def _different(before: ComparedRun, first: float | None, then: float | None) -> tuple[float, float] | None:
    """Return two costs per step in seconds; None if they differ by less than 5%, or by less than 1% of the step."""
    if before.table is None or first is None or then is None:
        return None
    step_s = float(before.table.step_s.mean())
    return (first, then) if abs(then - first) >= max(SPEED_RATIO * first, 0.01 * step_s) else None


def _obstacle(before: ComparedRun, after: ComparedRun) -> Unpriced | None:
    """Return why the baseline's model cannot predict the other run; None if it can."""
    # A model that was fitted to a different network does not apply to this one.
    if not same_compute_cost(before, after):
        return "other_network"
    if before.modeled is None:
        return "no_model"
    return None if before.modeled.replay.explains else "not_reproduced"


def _priced(cause: ChangeCause, model: ModelResult | None, obstacle: Unpriced | None) -> ChangeCause:
    """Return the cause with its predicted gain, or why there is none. obstacle: why there is no model."""
    if model is None or cause.change is None:
        return replace(cause, unpriced_because=obstacle or "not_modeled")
    gain = _gain_ratio(model, [cause.change])
    return replace(cause, alone_ratio=gain, unpriced_because="cannot_run" if gain is None else None)


def _is_worth_naming(cause: ChangeCause) -> bool:
    """Whether to list a cause: settings always, measured differences if they change the predicted rate by 1%."""
    return cause.kind == "setting" or cause.alone_ratio is None or _importance(cause) >= _LEAST_LOG_RATIO


def _importance(cause: ChangeCause) -> float:
    return -1.0 if cause.alone_ratio is None else abs(math.log1p(cause.alone_ratio))


def _gain_ratio(model: ModelResult, changes: Sequence[Change]) -> float | None:
    """Return the predicted gain from the changes together; None if the run cannot run with them."""
    gain = _gain(model, merged(changes))
    return None if gain is None or gain.value <= -1.0 else gain.value


def _gain(model: ModelResult, change: Change) -> Estimate | None:
    try:
        return what_if(model, change).gain_ratio
    except ImpossibleChangeError:
        return None


def merged(changes: Sequence[Change]) -> Change:
    """Return the changes as one; the last value of a field wins."""
    values = {
        each.name: value
        for change in changes
        for each in fields(change)
        if (value := getattr(change, each.name)) is not None
    }
    return Change(**values)


def _action_promise(
    before: ComparedRun, after: ComparedRun, changes: Collection[str], rate: Difference
) -> Promise | None:
    """Return the prediction of the recommended action that the other run carries out; None if it carries out none.

    Of several, the first that covers all changes, else the first.
    """
    carried_out = [
        (not names.issuperset(changes), rank, action)
        for rank, action in enumerate(before.promised, start=1)
        if (names := _carried_out(action, before, after, changes)) is not None
    ]
    if rate.change is None or not carried_out:
        return None
    others_changed, rank, action = min(carried_out, key=lambda each: each[:2])
    gain, prices = action.gain_ratio, tuple(promised_prices(action, before, after))
    is_near = _reaches(rate, gain)
    return Promise(rank, action.what, gain, rate.change, not others_changed, prices=prices, is_within_error=is_near)


def _fix_promise(
    before: ComparedRun, causes: Sequence[ChangeCause], rate: Difference, model: ModelResult | None
) -> Promise | None:
    """Return the prediction for the measured size of the first recommended fix that the other run shows.

    None if it shows none, or if a changed setting that the model has as an input would explain it.
    """
    settings = [each for each in causes if each.kind == "setting"]
    if model is None or rate.change is None or any(each.change for each in settings):
        return None
    fixes = {each.name: each.change for each in causes if each.kind == "measured" and _is_better(each)}
    for rank, action in enumerate(before.promised, start=1):
        change = fixes.get(_COST_OF.get(action.what, ""))
        if change is not None:
            gain, is_alone = _gain(model, change), not settings
            if gain is None:
                return None
            is_near = _reaches(rate, gain)
            return Promise(rank, action.what, gain, rate.change, is_alone, is_fix=True, is_within_error=is_near)
    return None


def _is_better(measured: ChangeCause) -> bool:
    """Whether a cost fell or a speed rose."""
    is_speed = measured.name in ("trainer_speed", "engine_speed")
    return (float(measured.after) > float(measured.before)) == is_speed


def _reaches(rate: Difference, predicted: Estimate) -> bool:
    """Whether the interval of the measured gain reaches into the predicted one."""
    return rate.low is not None and rate.high is not None and predicted.low <= rate.high and rate.low <= predicted.high


def _carried_out(
    action: Action, before: ComparedRun, after: ComparedRun, changed: Collection[str]
) -> frozenset[str] | None:
    """Return the settings that the action changes, if the other run has the recommended values; else None."""
    wanted, facts = action.after, after.run
    if action.what == "colocated":
        is_shared = "colocated_gpus" in changed and not facts.trainer_gpus and not facts.sampler_gpus
        return _LAYOUT | {"synchronous"} if is_shared else None
    if isinstance(wanted, Layout):
        is_running = after.max_running in (None, wanted.max_running)
        if not is_running or (facts.trainer_gpus, facts.sampler_gpus) != (wanted.trainer_gpus, wanted.sampler_gpus):
            return None
        if action.what == "asynchronous":
            return None if _is_synchronous(after) else _LAYOUT | {"synchronous"}
        return None if _LAYOUT.isdisjoint(changed) else _LAYOUT
    if action.what == "publish_every":
        published = _publish_every(before, after)
        return frozenset({"publish_every"}) if published is not None and published[1] == wanted else None
    name = SETTINGS.get(action.what, "")
    return frozenset({name}) if name in changed and after.settings.get(name) == wanted else None


def _is_synchronous(run: ComparedRun) -> bool:
    """Whether sampling and training take turns, according to the config, else to the model."""
    stated = run.settings.get("synchronous")
    return bool(stated) if stated is not None else run.modeled is not None and run.modeled.calibration.synchronous
