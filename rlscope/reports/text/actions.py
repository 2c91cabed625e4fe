"""Actions in words: what to do, in which setting, its gain, its cost, and how to verify it."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.analysis.staleness import effective_share_at
from rlscope.diagnose.evidence import Direction
from rlscope.frameworks import framework_of
from rlscope.model.causes import Cause, LossCause
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action, ActionWhat
from rlscope.model.forecast.price import StalenessForecast
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelResult
from rlscope.model.system import Layout
from rlscope.reports.blocks import Table
from rlscope.reports.text.names import EVIDENCE
from rlscope.reports.text.price import costly_words, dropped_words, longest_words, saved_words, share

Cost = Literal["restart", "engine_restart", "engineering"]
"""restart: of the run. engine_restart: of the engines. engineering: work on code or machines."""

_COSTS: Final[Mapping[Cost, str]] = {
    "restart": "a restart",
    "engine_restart": "a restart of the engines",
    "engineering": "engineering work",
}
_RUN_SETTINGS: Final[Mapping[ActionWhat, str]] = {
    "running_limit": "max_running",
    "staleness_cap": "max_staleness",
    "in_flight_limit": "max_in_flight_samples",
    "running_samples_limit": "max_running_samples",
    "queue_capacity_samples": "queue_capacity_samples",
}
"""Names in run.json, for an unknown framework."""
_FIXES: Final[Mapping[ActionWhat, str]] = {
    "weight_updates": "Make weight updates cheaper: overlap the transfer with generation and keep the KV cache",
    "environment": "Make the environment faster, or run more environments in parallel",
    "checkpoints": "Make checkpoints and evaluation cheaper: less often, in the background, or on other GPUs",
    "slow_engines": "Fix the slow engines",
    "trainer_speed": "Speed up training: shorten the training step, or add trainer GPUs",
    "engine_speed": "Speed up sampling: use faster engines, or add sampler GPUs",
    "colocated": "Colocate: every GPU alternates between sampling and training",
}
_FASTER: Final[Mapping[ActionWhat, str]] = {
    "trainer_speed": "for 10% faster training",
    "engine_speed": "for 10% faster sampling",
}
_ONE_STEP: Final = 1.05
"""Steps of a version up to which it counts as one."""
_ENGINES_NAMED: Final = 3
"""Number of slow engines that are named; the finding names the slowest."""
_IF: Final[Mapping[ActionWhat, str]] = {
    "weight_updates": "if weight updates took no time",
    "environment": "if the environment took no time",
    "slow_engines": "if all engines were equally fast",
    "checkpoints": "if checkpoints and evaluation took no time",
    "colocated": "if trainer and engine fit on one GPU and switching takes no time",
}
"""The condition for the whole gain of a fix, which is an upper bound."""
_MAKING_MORE: Final = frozenset(
    {
        "staleness_cap",
        "in_flight_limit",
        "running_samples_limit",
        "queue_capacity_samples",
        "running_limit",
        "engine_speed",
        "slow_engines",
    }
)
"""Settings and speeds that an action raises to start more samples, or to generate them faster."""
_SOONER: Final = frozenset({"running_limit", "layout"})
"""Changes that give samplers more requests at a time, or more GPUs."""
_TOWARDS: Final[Mapping[LossCause, Direction]] = {
    Cause.SAMPLERS: "more_samples",
    Cause.LOCKSTEP: "more_samples",
    Cause.TRAINERS: "fewer_samples",
}
OPPOSITES: Final[Mapping[Direction, frozenset[Direction]]] = {
    "more_samples": frozenset({"fewer_samples", "fresher"}),
    "fewer_samples": frozenset({"more_samples"}),
    "fresher": frozenset({"more_samples"}),
}
"""Directions that a step in the key's direction undoes."""


def what_to_do(action: Action) -> str:
    """The action as an imperative with what speaks against it, without a full stop."""
    words, price = imperative(action), costly_words(action.price, action.price_before)
    if action.kind != "probe":
        return f"{words} ({price})" if price else words
    return f"{words} ({price or 'gain may be under 5%'}: try it for {fmt.count(STEPS_TO_PREDICT)} steps first)"


def imperative(action: Action) -> str:
    """The action itself, however sure it is, with the limit that belongs to it."""
    return f"{_single_imperative(action)}{limit_words(action.in_flight_limit)}"


def limit_words(in_flight_limit: int | None) -> str:
    """Return the limit that keeps the queue of a change from growing, as the end of its imperative; empty if none."""
    return "" if in_flight_limit is None else f", and {_lower(_introduced(in_flight_limit))}"


def _introduced(limit: int) -> str:
    return f"Limit samples in flight (started and not yet taken by trainers; no limit today) to {fmt.count(limit)}"


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]


def _single_imperative(action: Action) -> str:
    before, after = action.before, action.after
    if isinstance(after, Layout):
        return _layout_imperative(action, after)
    if action.what in _FIXES:
        return _evened_imperative(action.engines) if action.engines else _FIXES[action.what]
    old = 0 if isinstance(before, Layout) or before is None else int(before)
    new = int(after or 0)
    if action.lowers_limit:
        return _lower_imperative(action.what, None if before is None else old, new)
    raised = f"from {fmt.count(old)} to {fmt.count(new)}"
    return {
        "staleness_cap": f"Raise the staleness cap {raised} versions",
        "in_flight_limit": f"Raise the limit on samples in flight {raised}",
        "running_samples_limit": f"Raise the limit on running samples over all engines {raised}",
        "queue_capacity_samples": f"Raise the queue capacity {raised} samples",
        "publish_every": f"Publish weights every {_steps(new)} instead of every {_steps(old)}",
    }[action.what]


def _lower_imperative(what: ActionWhat, old: int | None, new: int) -> str:
    """Return the imperative of a lower limit; old: None if there was none."""
    if old is None:
        return _introduced(new)
    limit = "queue capacity" if what == "queue_capacity_samples" else "limit on samples in flight"
    return f"Lower the {limit} from {fmt.count(old)} to {fmt.count(new)} samples"


def _steps(number: int) -> str:
    """Return the period of publications, as in "every 2 optimizer steps"."""
    return "step" if number == 1 else f"{fmt.count(number)} optimizer steps"


def _evened_imperative(engines: tuple[str, ...]) -> str:
    more = len(engines) - _ENGINES_NAMED
    named = [*engines[:_ENGINES_NAMED], f"{fmt.count(more)} more"] if more > 0 else [*engines]
    return f"Fix the slow engine{'s' if len(named) > 1 else ''} {fmt.listed(named)}"


def _layout_imperative(action: Action, after: Layout) -> str:
    if action.what == "running_limit" and isinstance(action.before, Layout):
        old, new = action.before.max_running, after.max_running
        verb = "Raise" if new > old else "Lower"
        return f"{verb} the limit on running requests per engine from {fmt.count(old)} to {fmt.count(new)}"
    if action.what == "asynchronous":
        return f"Run asynchronously on {layout_words(after)}"
    before = action.before if isinstance(action.before, Layout) else None
    if action.kind == "cheaper" and before is not None:
        return f"Use {_fewer_words(before, after)}"
    return f"Use {layout_words(after, before)}"


def _fewer_words(before: Layout, after: Layout) -> str:
    """Return the GPUs of the side that gives some back, with their number before."""
    if after.trainer_gpus < before.trainer_gpus:
        fewer, number = fmt.counted(after.trainer_gpus, "trainer GPU", "trainer GPUs"), before.trainer_gpus
    else:
        fewer, number = fmt.counted(after.sampler_gpus, "sampler GPU", "sampler GPUs"), before.sampler_gpus
    return f"{fewer} instead of {fmt.count(number)}"


def layout_words(layout: Layout, before: Layout | None = None) -> str:
    """A layout in words; before: the current one, if its numbers of GPUs are to be named."""
    trainers = fmt.counted(layout.trainer_gpus, "trainer GPU", "trainer GPUs")
    samplers = fmt.counted(layout.sampler_gpus, "sampler GPU", "sampler GPUs")
    running = fmt.counted(layout.max_running, "running request", "running requests")
    if before is None:
        return f"{trainers} and {samplers}, with up to {running} per engine"
    replaced = f"{fmt.count(before.trainer_gpus)} and {fmt.count(before.sampler_gpus)}"
    if layout.max_running == before.max_running:
        return f"{trainers} and {samplers} instead of {replaced}, still with up to {running} per engine"
    verb = "lower" if layout.max_running < before.max_running else "raise"
    limits = f"from {fmt.count(before.max_running)} to {fmt.count(layout.max_running)}"
    return (
        f"{trainers} and {samplers} instead of {replaced}, and {verb} the limit on running requests per engine {limits}"
    )


def gain_words(gain_ratio: Estimate) -> str:
    """A gain with its 90% interval, left out if its ends read the same."""
    median, low, high = map(fmt.gain, gain_ratio)
    return median if low == high else f"{median} (90% interval {low} to {high})"


def effect(action: Action) -> str:
    """Return the gain of the action, as the start of a sentence."""
    gain = gain_words(action.gain_ratio)
    if action.what in _FASTER:
        return f"Predicted throughput: {gain} {_FASTER[action.what]}"
    if action.kind == "fix":
        return f"Best case, {_IF[action.what]}: throughput {gain}"
    same = "about the same, " if action.kind in _KEEPING else ""
    if action.kind == "cheaper":
        return f"Predicted throughput: {same}{gain}{_spared_words(action)}"
    if action.lowers_limit:
        saved = saved_words(action.price, action.price_before)
        return f"Predicted throughput: {same}{gain}{f'. {saved}' if saved else ''}"
    return f"Predicted throughput: {gain}{_how(action)}"


def _spared_words(action: Action) -> str:
    """Return the GPUs of a cheaper layout against those of the current one, and what has to fit on them."""
    before, after = action.before, action.after
    if not isinstance(before, Layout) or not isinstance(after, Layout):
        return ""
    gpus = [each.gpus for each in (before, after)]
    spared = f", on {fmt.counted(gpus[1], 'GPU', 'GPUs')} instead of {fmt.count(gpus[0])}"
    if after.trainer_gpus == before.trainer_gpus:
        return spared
    return f"{spared}, if the training state fits on {fmt.counted(after.trainer_gpus, 'trainer GPU', 'trainer GPUs')}"


def _how(action: Action) -> str:
    """Why a layout helps against the staleness cap; empty for all other actions.

    Also empty if publications wait for the cap: the words on staleness then say what becomes of them.
    """
    is_sooner = action.cause == Cause.STALENESS_CAP and action.what in _SOONER and not lasts_longer(action.staleness)
    return ", because the staleness cap then blocks GPUs less" if is_sooner else ""


class Current(NamedTuple):
    """The staleness that actions change."""

    staleness: StalenessForecast | None
    """None if unknown."""
    cap: int | None = None
    """Staleness cap, in versions."""
    period_steps: float | None = None
    """Publish interval: staleness is then counted in optimizer steps, whatever an action changes."""

    @classmethod
    def of(cls, analysis: AnalysisResult) -> "Current":
        """Return the staleness of a run; unknown without a model."""
        model = analysis.model
        if not isinstance(model, ModelResult):
            return cls(None)
        cap, calibration = model.model_config.scheduling.admission.max_staleness, model.calibration
        return cls(model.forecasts.today.staleness, cap, calibration.steps_per_version)


def staleness_words(action: Action, current: Current) -> str:
    """Return how the staleness of samples changes; empty if a fix leaves it alone, or if it is unknown.

    The interval is in the table of actions.
    """
    ages = ages_of(action, current)
    if ages is None:
        return ""
    (before, after), caps = ages.words, _caps(action, current.cap)
    unit = _unit(after, in_steps=ages.in_steps)
    if after == before:
        versions = fmt.counted(current.cap or 0, "version", "versions")
        allowed = f". The cap of {versions} would then allow {fmt.count(caps[1])} optimizer steps" if caps else ""
        return f"Sample staleness (p95) stays at {after} {unit}{allowed}{_growth_words(action, current)}"
    verb = "falls" if ages.after < ages.before else "rises"
    change = f"Sample staleness (p95) {verb} from {before} to {after} {unit}"
    last = ". Ranked last despite its gain, because staleness rises by more than half" if action.is_staler else ""
    why = f"{_cap_words(action, current.cap)}{_versions_last(action, current)}"
    return f"{change}{_growth_words(action, current)}{why}{last}"


def _growth_words(action: Action, current: Current) -> str:
    """Return how long it takes to get as stale, and what would hold it or does; empty if staleness is steady."""
    staleness = action.staleness
    if action.in_flight_limit is not None:
        return "; without the limit on samples in flight it would grow with every step"
    if staleness is None or staleness.horizon_steps is None:
        return ""
    per_version = steps_per_version_after(action, current.period_steps or 1.0)
    steps = fmt.count(round(staleness.horizon_steps * per_version))
    return f" within {steps} optimizer steps, and grows until a limit on samples in flight holds it"


def _unit(age: str, *, in_steps: bool) -> str:
    name = "optimizer step" if in_steps else "version"
    return name if age == "1" else f"{name}s"


def _cap_words(action: Action, cap: int | None) -> str:
    """Return what rarer publications do to the cap; empty if there is no cap, or versions last as long as before."""
    caps = _caps(action, cap)
    if caps is None or cap is None:
        return ""
    period = fmt.counted(round(_number(action.after)), "step", "steps")
    versions, (old, new) = fmt.counted(cap, "version", "versions"), map(fmt.count, caps)
    allowed = f"allows {new} optimizer steps of staleness instead of {old}"
    return f". With {period} per version, the cap of {versions} {allowed}{_fewer_drops(action)}"


def _fewer_drops(action: Action) -> str:
    """Return what a wider cap spares, as a clause after a comma; empty if it drops as much as before."""
    before, dropped, now = action.price_before, action.price.dropped_ratio, action.price_before.dropped_ratio
    if dropped is None or now is None or dropped.value >= now.value or not action.price.changes_drops(before):
        return ""
    return f", so {share(dropped.value)} of generated tokens are dropped instead of {share(now.value)}"


def _versions_last(action: Action, current: Current) -> str:
    """Why staleness in steps differs from staleness in versions, if publications wait for the staleness cap."""
    own, after = current.staleness, action.staleness
    if action.what == "publish_every" or after is None or own is None or not (lasts_longer(own) or lasts_longer(after)):
        return ""
    lengths = (staleness.steps_per_version * (current.period_steps or 1.0) for staleness in (own, after))
    old, new = (steps_text(length).removeprefix("1 ") for length in lengths)
    if old == new:
        return f" (weights are published every {old} on average)"
    return f", because trainers then publish every {new} instead of every {old}"


def _has_staleness(action: Action) -> bool:
    """Return whether an action changes staleness: of the fixes, which remove a cost, only colocation does."""
    return action.kind != "fix" or action.what == "colocated"


class ActionAges(NamedTuple):
    """95th percentile of the staleness of samples before and after."""

    before: float
    after: float
    in_steps: bool
    """Counted in optimizer steps; otherwise in versions."""
    interval: tuple[float, float] | None = None
    """Ends of the 90% interval of `after`; None if it has none."""

    @property
    def words(self) -> tuple[str, str]:
        """Both as text."""
        return age_text(self.before), age_text(self.after)

    @property
    def interval_words(self) -> str | None:
        """Ends of the interval as text; None if there is none, or if it has no width."""
        if self.interval is None or self.interval[0] == self.interval[1]:
            return None
        return " to ".join(map(age_text, self.interval))


def age_text(age: float) -> str:
    """Versions, or steps, which need not be whole ones."""
    return fmt.count(round(age)) if math.isclose(age, round(age), abs_tol=1e-6) else fmt.significant(age, 2)


def steps_text(age_steps: float) -> str:
    """Staleness in steps, with its unit."""
    text = age_text(age_steps)
    return "1 step" if text == "1" else f"{text} steps"


def age_words(staleness: StalenessForecast | None, steps_per_version: float) -> str:
    """Return a forecast p95 in optimizer steps; steps_per_version: those between two versions that may be published."""
    if staleness is None:
        return fmt.NO_DATA
    steps = steps_text(staleness.p95_steps * steps_per_version)
    return steps if staleness.horizon_steps is None else f"{steps}, growing"


def ages_of(action: Action, current: Current) -> ActionAges | None:
    """Return the staleness before and after the action, in one unit; None if unknown, or if a fix leaves it alone."""
    own, after = current.staleness, action.staleness
    if not _has_staleness(action) or after is None or own is None:
        return None
    if action.what == "publish_every":
        steps_before = _number(action.before)
        steps = own.p95_steps * steps_before, after.p95_steps * steps_per_version_after(action, steps_before)
        return ActionAges(
            *steps, in_steps=True, interval=_interval(after, steps_per_version_after(action, steps_before))
        )
    if current.period_steps is not None or lasts_longer(own) or lasts_longer(after):
        steps_each = current.period_steps or 1.0
        ages = own.p95_steps * steps_each, after.p95_steps * steps_each
        return ActionAges(*ages, in_steps=True, interval=_interval(after, steps_each))
    # A version lasts one step.
    return ActionAges(own.sample_p95, after.sample_p95, in_steps=False, interval=_interval(after, 1.0))


def _interval(staleness: StalenessForecast, steps_each: float) -> tuple[float, float] | None:
    """Return the interval of a p95 whose steps, which could have published, take so many optimizer steps each."""
    ends = staleness.p95_interval_steps
    return None if ends is None else (ends[0] * steps_each, ends[1] * steps_each)


def steps_per_version_after(action: Action, steps_per_version: float) -> float:
    """Optimizer steps per version after the action; steps_per_version: those of the current run."""
    return _number(action.after) if action.what == "publish_every" else steps_per_version


def lasts_longer(staleness: StalenessForecast | None) -> bool:
    """Return whether a version lasts for more steps than intended, so that versions of two layouts differ in length."""
    return staleness is not None and staleness.steps_per_version > _ONE_STEP


def _caps(action: Action, cap: int | None) -> tuple[int, int] | None:
    """Return the cap in optimizer steps before and after, if the action changes the steps per version; else None."""
    if action.what != "publish_every" or cap is None:
        return None
    return round(cap * _number(action.before)), round(cap * _number(action.after))


def setting_of(action: Action, run: RunFacts) -> str | None:
    """Return the name of the setting in the run's framework; None if unknown."""
    return _setting_name(action.what, run)


def limit_setting_of(action: Action, run: RunFacts) -> str | None:
    """Return the name of the limit that belongs to the action; None without a limit, or if unknown."""
    return None if action.in_flight_limit is None else _setting_name("in_flight_limit", run)


def _setting_name(what: ActionWhat, run: RunFacts) -> str | None:
    framework = framework_of(run.settings.get("framework"))
    named: Mapping[str, str] = framework.actions if framework else {}
    return named.get(what) or _RUN_SETTINGS.get(what)


def cost_of(action: Action) -> Cost:
    """Return the kind of work that the action takes."""
    # Overlapping the two sides takes another training loop, not a setting of this one.
    if action.kind == "fix":
        return "engineering"
    if action.what == "asynchronous":
        return "engineering"
    return "engine_restart" if action.what == "running_limit" and action.in_flight_limit is None else "restart"


def cost_words(action: Action) -> str:
    """Return the work that the action takes, in words."""
    return _COSTS[cost_of(action)]


def verify_words(action: Action, measured_tokens_per_s: float | None) -> str:
    """Return how to check the gain."""
    expected = expected_words(action, measured_tokens_per_s)
    hope = f"; expected: {expected}" if expected else ""
    return f"To verify, record {fmt.count(STEPS_TO_PREDICT)} steps in steady state and run `rlscope compare`{hope}."


def expected_words(action: Action, measured_tokens_per_s: float | None) -> str:
    """Return the expected rate; empty if none was measured, and for a fix, whose gain is an upper bound."""
    if measured_tokens_per_s is None or action.kind == "fix":
        return ""
    return fmt.with_interval(
        fmt.tokens_per_second, *(measured_tokens_per_s * (1.0 + gain) for gain in action.gain_ratio)
    )


def effective_gain_ratio(action: Action, analysis: AnalysisResult) -> float | None:
    """Gain of the rate times the effective sample size at the ages before and after, less 1.

    None if importance ratios were recorded at fewer than three ages, or not up to the age after the action.
    """
    tokens, moments = analysis.staleness.tokens, analysis.answers.get("version_moments")
    if tokens is None or action.staleness is None or moments is None:
        return None
    now = effective_share_at(moments, tokens.mean)
    then = effective_share_at(moments, action.staleness.token_mean)
    return None if not now or then is None else (1.0 + action.gain_ratio.value) * then / now - 1.0


def direction_of(action: Action) -> Direction | None:
    """Return whether the action makes more samples for the trainers, or fewer; None if it aims at neither."""
    if action.what == "colocated" or action.kind == "cheaper":
        return None
    if action.lowers_limit:
        return "fresher"
    makes_more = action.what in _MAKING_MORE or (action.what == "publish_every" and action.cause == Cause.STALENESS_CAP)
    return "more_samples" if makes_more else _TOWARDS.get(action.cause)


TITLE: Final = "Actions, in the recommended order"
_KEEPING: Final = frozenset({"fresher", "cheaper"})
"""Kinds of actions that keep the throughput and save something else."""


def actions_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Return the actions as a table, without columns that are empty in every row; rows: as of `action_row`."""
    titles = [title for title in rows[0] if any(row[title] for row in rows)]
    return Table(TITLE, titles, [[row[title] for title in titles] for row in rows], "stacks", is_numbered=True)


def below_table(ranked: Sequence[Action]) -> str:
    """Return what holds for all actions of a table, and their order if it is not that of their gains.

    Actions that keep the throughput gain none, and need no explanation at the end of the list.
    """
    verify = (
        f"Each gain is for that change alone. To verify one, make it, record {fmt.count(STEPS_TO_PREDICT)} steady "
        "steps and run `rlscope compare BEFORE AFTER`."
    )
    layouts = [fmt.count(number) for number, each in enumerate(ranked, 1) if isinstance(each.after, Layout)]
    if len(layouts) > 1:
        verify = f"{verify} Actions {fmt.listed(layouts)} are alternatives to each other."
    gains = [each.gain_ratio.value for each in ranked if each.kind not in _KEEPING]
    kinds = [each.kind in _KEEPING for each in ranked]
    keeps = kinds != sorted(kinds)
    if gains == sorted(gains, reverse=True) and not keeps:
        return verify
    lower = " Settings that only lower drops, staleness or GPUs come before engineering work." if keeps else ""
    return (
        f"{verify} Settings at least 90% likely to gain 5% come first, then tests and engineering work, each group "
        f"sorted by gain. Gains within 2% of each other are ordered by risk of a loss, drops and staleness.{lower} "
        "Changes that raise staleness by more than half come last."
    )


def action_row(action: Action, analysis: AnalysisResult, current: Current) -> dict[str, str]:
    """Return an action as the row of a table: the cells by title, empty if there is nothing to say.

    Staleness and the two shares are those before and after; a share is empty unless it differs notably.
    """
    settings = (setting_of(action, analysis.run), limit_setting_of(action, analysis.run))
    return {
        "what": _what_cell(action, [name for name in settings if name]),
        "predicted gain": "; ".join(filter(None, (_gain_cell(action), _evidence(action)))),
        "staleness p95": _staleness_cell(action, current),
        "tokens dropped": dropped_words(action.price, action.price_before),
        "longest 10% trained": longest_words(action.price, action.price_before),
        "cost": _cost_cell(action),
        "predicted tokens/s": _expected_cell(action, analysis.throughput.steady_tokens_per_s),
    }


def _evidence(action: Action) -> str:
    """Return how far the batches of a layout are from the measured ones; empty if they were measured or stay."""
    changes_batch = isinstance(action.after, Layout) and action.kind != "cheaper"
    return EVIDENCE[action.grade] if action.grade not in (None, "measured") and changes_batch else ""


def _what_cell(action: Action, settings: Sequence[str]) -> str:
    """Return the action with the names of its settings; its price has columns of its own."""
    spared = _spared_words(action) if action.kind == "cheaper" else ""
    named = f" ({fmt.listed(settings)})" if settings else ""
    return f"{imperative(action)}{spared}{named}"


def _cost_cell(action: Action) -> str:
    tried = f"; test {fmt.count(STEPS_TO_PREDICT)} steps first" if action.kind == "probe" else ""
    return f"{cost_words(action)}{tried}"


def _expected_cell(action: Action, measured_tokens_per_s: float | None) -> str:
    if measured_tokens_per_s is None or action.kind == "fix":
        return ""
    return fmt.tokens_per_second(measured_tokens_per_s * (1.0 + action.gain_ratio.value)).removesuffix(" tokens/s")


def _gain_cell(action: Action) -> str:
    """Return the gain, with its condition where the action does not tell it."""
    gain = fmt.with_interval(fmt.gain, *action.gain_ratio)
    if action.what in _FASTER:
        return f"{gain} {_FASTER[action.what]}"
    if action.what == "slow_engines":
        return f"best case {gain}"
    return f"best case {gain}, {_IF[action.what]}" if action.kind == "fix" else gain


def _staleness_cell(action: Action, current: Current) -> str:
    ages, caps = ages_of(action, current), _caps(action, current.cap)
    if ages is None:
        return ""
    (before, after), unit = ages.words, _unit(ages.words[1], in_steps=ages.in_steps).removeprefix("optimizer ")
    between = "" if ages.interval_words is None else f" ({ages.interval_words})"
    spanned = f", cap {fmt.count(caps[1])}" if caps else ""
    grows = "" if action.staleness is None or action.staleness.horizon_steps is None else ", growing"
    change = f"stays at {after}" if before == after else f"{before} → {after}"
    return f"{change}{between} {unit}{spanned}{grows}"


def _number(setting: Layout | float | None) -> float:
    return 0.0 if setting is None or isinstance(setting, Layout) else setting
