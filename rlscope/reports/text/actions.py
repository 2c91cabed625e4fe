"""Actions in words: what to do, in which setting, its gain and its price."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult, RunFacts
from rlscope.analysis.staleness import effective_share_at
from rlscope.frameworks import framework_of
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import SETTINGS, Action, ActionWhat
from rlscope.model.forecast.price import StalenessForecast
from rlscope.model.forecast.recommend import STALER_RATIO
from rlscope.model.forecast.result import STEPS_TO_PREDICT, ModelResult
from rlscope.model.system import Layout
from rlscope.reports.blocks import Paragraph, Part, Table
from rlscope.reports.text.names import EVIDENCE
from rlscope.reports.text.price import costly_words, dropped_words, longest_words, million_gpu_s

Cost = Literal["restart", "engine_restart", "engineering"]
"""restart: of the run. engine_restart: of the engines. engineering: work on code or machines."""

_COSTS: Final[Mapping[Cost, str]] = {
    "restart": "a restart",
    "engine_restart": "a restart of the engines",
    "engineering": "engineering work",
}
_FIXES: Final[Mapping[ActionWhat, str]] = {
    "weight_updates": "Make weight updates cheaper: overlap the transfer with generation and keep KV caches",
    "environment": "Make the environment faster, or run more environments in parallel",
    "checkpoints": "Save or evaluate less often, in the background, or on other GPUs",
    "slow_engines": "Fix the slow engines",
    "trainer_speed": "Make training steps faster, or add trainer GPUs",
    "engine_speed": "Make the engines faster, or add sampler GPUs",
    "colocated": "Colocate: all GPUs sample, then all GPUs train",
}
_LIMITS: Final[Mapping[ActionWhat, tuple[str, str]]] = {
    "running_limit": ("limit on running requests per engine", ""),
    "staleness_cap": ("staleness cap", " versions"),
    "in_flight_limit": ("limit on samples in flight", ""),
    "running_samples_limit": ("limit on running samples over all engines", ""),
    "queue_capacity_samples": ("queue capacity", " samples"),
}
"""Name and unit of each limit that an action raises or lowers."""
_SOONER_RATIO: Final = 0.9
"""Steps of a version after an action, over those before it, from which publications count as more frequent; over it,
as rarer."""
_ENGINES_NAMED: Final = 3
"""Number of slow engines that are named; the finding names the slowest."""
_IF: Final[Mapping[ActionWhat, str]] = {
    "weight_updates": "{} if weight updates took no time",
    "environment": "{} if the environment took no time",
    "slow_engines": "{} if {it} ran as fast as the other engines",
    "checkpoints": "{} if saving or evaluating took no time",
    "colocated": "{} if trainer and engine fit on one GPU and switching takes no time",
    "trainer_speed": "{} for 10% faster training",
    "engine_speed": "{} for 10% faster sampling",
}
"""The gain of a fix, with its condition."""
TITLE: Final = "Recommended actions"
_VERIFY: Final = (
    f"To verify a gain, record {fmt.count(STEPS_TO_PREDICT)} steps with the change and run "
    "`rlscope compare BEFORE AFTER`."
)
_INTERVALS: Final = "Ranges in parentheses are 90% intervals. Each gain is for that change alone."
GAIN: Final = "predicted gain"
STALENESS: Final = "sample staleness p95"
DROPPED: Final = "tokens dropped"
_LONGEST: Final = "long responses kept (longest 10%)"
_STALENESS_MEANS: Final = "Sample staleness is in optimizer steps; a sample is as stale as its oldest token."


def what_to_do(action: Action) -> str:
    """The action as an imperative with what speaks against it, without a full stop."""
    doubt = _doubt(action)
    return f"{imperative(action)} ({doubt})" if doubt else imperative(action)


def saving_words(action: Action) -> str:
    """Return what an action saves that keeps the rate, as a predicate without a subject."""
    if action.kind == "cheaper":
        return "frees GPUs"
    return "drops fewer tokens" if action.price.changes_drops(action.price_before) else "makes samples fresher"


def _doubt(action: Action) -> str:
    """Return what speaks against an action, and that it is to be tested if it is a probe; empty if nothing does."""
    price = costly_words(action.price, action.price_before)
    if action.kind != "probe":
        return price
    doubt = price or ("the gain may be under 5%" if action.gain_ratio.low > 0.0 else "throughput may fall")
    return f"{doubt}: test it for {fmt.count(STEPS_TO_PREDICT)} steps first"


def imperative(action: Action) -> str:
    """The action itself, however sure it is, with the limit that belongs to it."""
    return f"{_single_imperative(action)}{limit_words(action.in_flight_limit)}"


def limit_words(in_flight_limit: int | None) -> str:
    """Return the limit that keeps the queue of a change from growing, as the end of its imperative; empty if none."""
    if in_flight_limit is None:
        return ""
    return f", and add {_in_flight_limit(in_flight_limit)}"


def _in_flight_limit(limit: float | None) -> str:
    return f"a limit of {fmt.count(limit)} samples in flight, generating or queued"


def _single_imperative(action: Action) -> str:
    before, after = action.before, action.after
    if action.engines:
        count, engines = len(action.engines), fmt.listed(action.engines)
        named = fmt.some(action.engines, _ENGINES_NAMED) if count > _ENGINES_NAMED else engines
        return f"Fix the slow engine{'s' if count > 1 else ''}: {named}"
    if action.what in _FIXES:
        return _FIXES[action.what]
    if action.what == "publish_every":
        return f"Publish weights every {_steps(after)} instead of every {_steps(before)}"
    if action.what in _LIMITS:
        return _limit_imperative(action.what, _limit(before), _limit(after))
    assert isinstance(after, Layout)
    if action.what == "asynchronous":
        return f"Run asynchronously on {layout_words(after)}"
    return f"Use {layout_words(after, before if isinstance(before, Layout) else None)}"


def _limit_imperative(what: ActionWhat, old: float | None, new: float | None) -> str:
    """Return the imperative of a limit; old: None if there was none."""
    if old is None or new is None:
        return f"Add {_in_flight_limit(new)}"
    name, unit = _LIMITS[what]
    return f"{'Raise' if new > old else 'Lower'} the {name} from {fmt.count(old)} to {fmt.count(new)}{unit}"


def _limit(setting: Layout | float | None) -> float | None:
    return setting.max_running if isinstance(setting, Layout) else setting


def _steps(period: Layout | float | None) -> str:
    """Return the period of publications, as in "every 2 optimizer steps"."""
    return "step" if period == 1 else f"{fmt.count(_limit(period))} optimizer steps"


def layout_words(layout: Layout, before: Layout | None = None) -> str:
    """A layout in words; before: the current one, if what it changes is to be named."""
    trainers = fmt.counted(layout.trainer_gpus, "trainer GPU")
    samplers = fmt.counted(layout.sampler_gpus, "sampler GPU")
    running = fmt.counted(layout.max_running, "running request")
    if before is None:
        return f"{trainers} and {samplers}, with up to {running} per engine"
    words = (
        f"{trainers} and {samplers} instead of {fmt.count(before.trainer_gpus)} and {fmt.count(before.sampler_gpus)}"
    )
    if layout.max_running == before.max_running:
        return words
    return f"{words}, with up to {running} per engine instead of {fmt.count(before.max_running)}"


def split_words(layout: Layout) -> str:
    """The GPUs of a layout in figures, trainers first."""
    return f"{fmt.count(layout.trainer_gpus)} : {fmt.count(layout.sampler_gpus)}"


def gain_words(gain_ratio: Estimate) -> str:
    """A gain with its 90% interval, left out if its ends read the same."""
    median, low, high = map(fmt.gain, gain_ratio)
    return median if low == high else f"{median} (90% interval {low} to {high})"


def age_words(staleness: StalenessForecast | None, steps_per_version: float) -> str:
    """Return a forecast p95 in optimizer steps; steps_per_version: those between two versions that may be published."""
    if staleness is None:
        return fmt.NO_DATA
    text = _age(staleness.p95_steps * steps_per_version)
    return f"{text} {_steps_noun(text)}{_growing(staleness)}"


def _steps_noun(written: str) -> str:
    return "step" if written == "1" else "steps"


def _growing(staleness: StalenessForecast) -> str:
    return "" if staleness.horizon_steps is None else ", growing"


def _age(steps: float | None) -> str:
    """Write optimizer steps, which need not be whole ones."""
    is_whole = steps is not None and math.isclose(steps, round(steps), abs_tol=1e-6)
    return fmt.count(steps) if is_whole else fmt.significant(steps, 2)


def limit_setting_of(action: Action, run: RunFacts) -> str | None:
    """Return the name of the limit that belongs to the action; None without a limit, or if unknown."""
    return None if action.in_flight_limit is None else setting_of("in_flight_limit", run)


def setting_of(what: ActionWhat, run: RunFacts) -> str | None:
    """Return the name of a setting in the run's framework; None if unknown."""
    framework = framework_of(run.settings.get("framework"))
    named: Mapping[str, str] = framework.actions if framework else {}
    return named.get(what) or SETTINGS.get(what)


def cost_of(action: Action) -> Cost:
    """Return the kind of work that the action takes."""
    if action.takes_engineering:
        return "engineering"
    return "engine_restart" if action.what == "running_limit" and action.in_flight_limit is None else "restart"


def effective_gain_ratio(action: Action, analysis: AnalysisResult) -> float | None:
    """Gain of the rate times the effective sample size at the ages before and after, less 1.

    None if importance ratios were recorded at fewer than three ages, or not up to the age after the action.
    """
    tokens, moments = analysis.staleness.tokens, analysis.answers["version_moments"]
    if tokens is None or action.staleness is None:
        return None
    now = effective_share_at(moments, tokens.mean)
    then = effective_share_at(moments, action.staleness.token_mean)
    return None if not now or then is None else (1.0 + action.gain_ratio.value) * then / now - 1.0


def actions_part(shown: Sequence[Action], analysis: AnalysisResult) -> Part | None:
    """Return the actions in groups, as a table without empty columns, and what explains it. None without actions."""
    model = analysis.modeled
    rows = [] if model is None else [action_row(each, analysis, model) for each in shown]
    titles = [title for title in (rows[0] if rows else ()) if any(row[title] for row in rows)]
    cells = [[row[title] for title in titles] for row in rows]
    notes = {_INTERVALS: True, _STALENESS_MEANS: STALENESS in titles, _VERIFY: True}
    below = " ".join(note for note, is_needed in notes.items() if is_needed)
    table = Table(TITLE, titles, cells, "stacks", groups=list(map(_group, shown)))
    return Part(TITLE, [table, Paragraph(below, "note")]) if rows else None


def _group(action: Action) -> str:
    if action.is_staler:
        return f"Settings that raise staleness p95 by more than {STALER_RATIO - 1.0:.0%}"
    return "Engineering work" if action.takes_engineering else "Settings"


def action_row(action: Action, analysis: AnalysisResult, model: ModelResult) -> dict[str, str]:
    """Return an action as the row of a table: the cells by title, empty if there is nothing to say.

    Staleness and the two shares are those before and after; a share is empty unless it differs notably.
    """
    run = analysis.run
    settings = [name for name in (setting_of(action.what, run), limit_setting_of(action, run)) if name]
    doubt = f"; {_doubt(action)}" if action.kind == "probe" else ""
    saving = f"; {saving_words(action)} at the same throughput" if action.kind in ("cheaper", "fresher") else ""
    return {
        "what": f"{imperative(action)}{f' ({fmt.listed(settings)})' if settings else ''}{doubt}{saving}",
        **effects(action, model),
        "cost": _COSTS[cost_of(action)],
        "predicted tokens/s": "" if (rate := rate_after(action, analysis)) is None else fmt.si(rate),
        "price of 1M trained tokens": fmt.money(
            million_gpu_s_after(action, analysis), run.gpu_hour_price, run.currency
        ),
    }


def million_gpu_s_after(action: Action, analysis: AnalysisResult) -> float | None:
    """Return the GPU-seconds of all GPUs for a million trained tokens after the action.

    None for a fix, which promises no rate, and if the current rate is unknown.
    """
    run = analysis.run
    gpus = action.after.gpus + run.auxiliary_gpus if isinstance(action.after, Layout) else run.total_gpus
    return million_gpu_s(gpus, rate_after(action, analysis))


def rate_after(action: Action, analysis: AnalysisResult) -> float | None:
    """Return the trained tokens per second after an action; None for a fix, or if the current rate is unknown."""
    measured_tokens_per_s = analysis.throughput.steady_tokens_per_s
    if measured_tokens_per_s is None or action.kind == "fix":
        return None
    return measured_tokens_per_s * (1.0 + action.gain_ratio.value)


def effects(action: Action, model: ModelResult) -> dict[str, str]:
    """Return what an action changes, before and after, by quantity; empty if it leaves a quantity alone."""
    return {
        GAIN: "; ".join(filter(None, (_gain_cell(action), _evidence(action)))),
        STALENESS: _staleness_cell(action, model),
        DROPPED: dropped_words(action.price, action.price_before),
        _LONGEST: longest_words(action.price, action.price_before),
    }


def _evidence(action: Action) -> str:
    """Return how far the batches of a layout are from the measured ones; empty if they were measured or stay."""
    changes_batch = isinstance(action.after, Layout) and action.kind != "cheaper"
    return EVIDENCE[action.grade] if action.grade not in (None, "measured") and changes_batch else ""


def _gain_cell(action: Action) -> str:
    """Return the gain, with its condition."""
    gain, before, after = fmt.with_interval(fmt.gain, *action.gain_ratio), action.before, action.after
    if action.kind == "fix":
        return _IF[action.what].format(gain, it="it" if len(action.engines) == 1 else "they")
    if action.kind != "cheaper" or not isinstance(before, Layout) or not isinstance(after, Layout):
        return gain
    if after.trainer_gpus < before.trainer_gpus:
        return f"{gain}, if the training state fits on {fmt.counted(after.trainer_gpus, 'GPU')}"
    return gain


def _staleness_cell(action: Action, model: ModelResult) -> str:
    """Return the p95 of staleness before and after, in optimizer steps.

    Empty if it is unknown, or if the action leaves it alone, as all fixes but colocation do.
    """
    own, found, steps = model.forecasts.today.staleness, action.staleness, model.calibration.steps_per_version
    if found is None or own is None or (action.kind == "fix" and action.what != "colocated"):
        return ""
    then = found.p95_in_optimizer_steps(action.steps_per_version(steps))
    before, after, low, high = map(_age, (own.p95_steps * steps, *then))
    between = "" if low == high else f" ({low} to {high})"
    return f"{before} → {after}{between} {_steps_noun(after)}{_growing(found)}{_cap_words(action, model)}"


def _cap_words(action: Action, model: ModelResult) -> str:
    """Return what the staleness cap then does: the optimizer steps that it allows if publications get rarer, and the
    interval of publications that wait for it, if that differs notably. Empty if the cap does as now.
    """
    steps, cap = model.calibration.steps_per_version, model.model_config.scheduling.admission.max_staleness
    steps_then, own, after = action.steps_per_version(steps), model.forecasts.today.staleness, action.staleness
    words = ""
    if action.what == "publish_every" and cap:
        words = f"; the cap of {fmt.counted(cap, 'version')} is then {_age(cap * steps_then)} steps"
    ratio = 1.0 if own is None or after is None else after.steps_per_version / own.steps_per_version
    if own is None or after is None or _SOONER_RATIO < ratio < 1.0 / _SOONER_RATIO:
        return words
    now, then = own.steps_per_version * steps, after.steps_per_version * steps_then
    return f"{words}, because weights are then published every {_age(then)} steps, not every {_age(now)}"
