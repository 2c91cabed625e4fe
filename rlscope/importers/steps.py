"""Reads metrics with a framework's table: one list of steps for each process that logs.

Only values that the table names are kept, so that a log of gigabytes takes a few kilobytes per step. `layout.py`
places the steps in time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, islice, pairwise
from statistics import median
from typing import Any, Final

from rlscope.errors import ImportFileError
from rlscope.frameworks import frameworks
from rlscope.frameworks.table import Framework, Names, PhaseKind, PhaseMetric, Placement, Process, Role
from rlscope.importers.console import CONSOLE, console_of, pairs_of
from rlscope.importers.importer import FURTHER_BYTES, ImportSource, Progress
from rlscope.importers.lines import clean_lines
from rlscope.importers.options import OWN
from rlscope.importers.quantities import (
    COUNTS,
    LONGEST_S,
    MOST,
    MOST_GPUS,
    MOST_STEPS,
    RefusedNumberError,
    amount,
    is_in_ms,
    whole,
)
from rlscope.importers.records import CSV, JSONL, MLFLOW_FILES, PARQUET, SQLITE, TRAINER_STATE
from rlscope.importers.rows import Carrier, MetricRow, Tally
from rlscope.importers.target import ImportTarget
from rlscope.importers.tensorboard import TENSORBOARD
from rlscope.importers.wandb import SWANLAB, WANDB

CARRIERS: Final = (WANDB, SWANLAB, TENSORBOARD, SQLITE, PARQUET, MLFLOW_FILES, TRAINER_STATE, JSONL, CSV, CONSOLE)
"""All carriers; those with unmistakable formats come first."""
_ROWS_TO_KNOW: Final = 200
_WHOLE_TOLERANCE_RATIO: Final = 0.01


@dataclass(slots=True)
class Step:
    """The logged values of one step."""

    number: int
    end_ns: int | None
    count: int = 1
    """Number of steps that the values are the mean of."""
    values: dict[str, float] = field(default_factory=dict[str, float])
    starts: int = 1
    """Number of times that the run had been started, by the steps that it repeats."""
    before_ns: int | None = None
    """Time of the row before this step's, which may be of the attempt before."""


@dataclass(frozen=True, slots=True)
class ProcessSteps:
    """The steps of one process that logs, in order."""

    worker_id: str
    process: Process
    steps: tuple[Step, ...]
    repeated: int = 0
    """Number of steps written again with other values, by a resumed run or by another run."""
    cut: frozenset[int] = frozenset()
    """Numbers of further steps, whose rows were cut off before their times."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """The contents of a metrics file, read with a framework's table."""

    framework: Framework
    is_separate: bool
    is_stated: bool
    """Whether the file states `is_separate`; otherwise the user's options take precedence."""
    is_doubtful: bool
    """Whether `is_separate` is only inferred from the staleness that the framework reports."""
    processes: tuple[ProcessSteps, ...]
    config: Mapping[str, Any]
    is_config_unread: bool = False
    changed: tuple[str, ...] = ()
    """Settings that earlier starts of the run had with other values: name, and the values in order."""
    sampler_id: str = "sampler"
    """Name of the worker that stands for all samplers."""

    def gpus(self, role: str) -> int | None:
        """Return the GPUs of a role, from the framework's config."""
        if stated := gpus_of(self.config, self.framework, role):
            return stated
        every, sampling = (gpus_of(self.config, self.framework, each) for each in ("total", "sampler"))
        if not every or role != "trainer":
            return None
        return every if not self.is_separate else every - sampling if sampling and sampling < every else None

    def settings(self) -> dict[str, int]:
        """Return the entries for run.json's config that the framework's config states."""
        stated = stated_settings(self.config, self.framework)
        if not self.is_separate:
            # Samples of a run that shares its GPUs are never stale.
            stated.pop("max_staleness", None)
        return stated


def stated_settings(config: Mapping[str, Any], framework: Framework) -> dict[str, int]:
    """Return the entries for run.json's config that a framework's config states."""
    wanted = {name: products for name, products in framework.settings.items() if not name.endswith("_gpus")}
    found = {name: whole_setting(config, products) for name, products in wanted.items()}
    return {name: value for name, value in found.items() if value is not None}


def gpus_of(config: Mapping[str, Any], framework: Framework, role: str) -> int | None:
    """Return the GPUs of a role, or the total, that a framework's config states; None if it does not."""
    return whole_setting(config, framework.settings.get(f"{role}_gpus", ()))


def whole_setting(config: Mapping[str, Any], products: Names) -> int | None:
    """Return the first product of settings that the config states; None if it states none."""
    for product in products:
        factors = [setting(config, path) for path in product.split(" * ")]
        if all(isinstance(each, int) and not isinstance(each, bool) and 0 < each <= MOST_STEPS for each in factors):
            return math.prod(int(each) for each in factors)
    return None


def setting(config: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401
    """Return the setting at a dotted path, nested or under its dotted name; None if there is none."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return config.get(path) if value is None else value


def names_in(source: ImportSource) -> frozenset[str]:
    """Return the metric names in the first rows of a file; empty if it is not a metrics file."""
    carrier = carrier_of(source)
    return _rows_names(source, carrier) if carrier is not None else frozenset()


@lru_cache(maxsize=16)
def _rows_names(source: ImportSource, carrier: Carrier) -> frozenset[str]:
    names = set[str]()

    def stop(_bytes: int) -> None:
        if tally.bytes >= FURTHER_BYTES:
            raise _EnoughReadError

    tally = Tally(stop)
    with suppress(_EnoughReadError, OSError, ImportFileError):
        for row in islice(carrier.rows(source.path, tally), _ROWS_TO_KNOW):
            names |= row.values.keys()
    return frozenset(names)


class _EnoughReadError(Exception):
    """Stops reading after the first part of a file."""


@lru_cache(maxsize=16)
def carrier_of(source: ImportSource) -> Carrier | None:
    """Return the carrier of a metrics file; None for any other file."""
    carrier = next((each for each in CARRIERS if each.fits(source)), None) if source.head else None
    if carrier is not CONSOLE:
        return carrier
    own, text = source.own, "\n".join(line.text for line in clean_lines(source.text))
    console = CONSOLE if own is None else console_of(own)
    named = [each for each in _tables(source) if any(all(name in text for name in group) for group in each.known_by)]
    if own is None and not named:
        return console
    # Without a printed dictionary or table of these metrics, look for `name: value`.
    names = _rows_names(source, console)
    if own is not None:
        return console if any(own.bare(name) in own.wanted for name in names) else pairs_of(own.wanted)
    if any(_is_of(each, names) for each in _tables(source)):
        return console
    # Those of each framework that the text names: a log of two is refused.
    prefixes = {prefix for each in named for prefix in (*each.reported, *_marks(each.placement))}
    return pairs_of(frozenset[str]().union(*(each.wanted for each in named)), sorted(prefixes))


def _marks(placement: Placement) -> Names:
    marks = (*placement.separate_metrics, *placement.colocated_metrics, *placement.unsettled_metrics)
    return tuple(mark for mark in marks if "/" in mark)


def recognize_steps(framework: Framework, source: ImportSource) -> bool:
    """Return whether a file contains step metrics of the framework."""
    return _release_of(framework, names_in(source)) is not None


def _release_of(framework: Framework, names: frozenset[str]) -> Framework | None:
    return next((each for each in framework.releases() if _is_of(each, names)), None)


def _is_of(release: Framework, names: frozenset[str]) -> bool:
    bare = {release.bare(name) for name in names}
    return any(set(group) <= bare for group in release.known_by)


def _limits(framework: Framework) -> dict[str, float]:
    """Return the most that the metrics of times and counts can be, by name."""
    limits = {name: LONGEST_S for process in framework.phases.values() for name in process.names}
    for column in COUNTS:
        limits |= dict.fromkeys(framework.columns.get(column, ()), MOST)
    return limits


class _Process:
    """Collects the steps of one process."""

    def __init__(self, process: Process) -> None:
        self.process, self.marks = process, frozenset(process.marks)
        self.steps: dict[int, Step] = {}
        self.repeated = 0
        self._starts, self._last = 1, 0
        self._last_ns: int | None = None

    def add(self, number: int | None, kept: dict[str, float], time_ns: int | None) -> None:
        """Add a row to its step. The row of another attempt at a step replaces that of an earlier one."""
        known = number if number is not None else max(self.steps, default=0) + 1
        step = self.steps.setdefault(known, Step(known, None, before_ns=self._last_ns))
        if self._is_another(step.values, kept):
            self.repeated += 1
            # A run that is started again goes back to its last checkpoint.
            self._starts += known <= self._last
            step.values, step.before_ns = {}, self._last_ns
        self._last, self._last_ns, step.starts = known, time_ns, self._starts
        step.values.update(kept)
        step.end_ns = time_ns if time_ns is not None else step.end_ns

    def _is_another(self, held: Mapping[str, float], found: Mapping[str, float]) -> bool:
        """Whether a row is of another attempt at a step: it has the same time metrics with other values."""
        names = [name for name in (*self.process.step, *self.process.marks) if name in held and name in found]
        return any(held[name] != found[name] for name in names)


def _collect(
    rows: Iterator[MetricRow], framework: Framework, tally: Tally
) -> tuple[tuple[ProcessSteps, ...], frozenset[str]]:
    """Return the steps of each process, and all metric names. Rows with out-of-range values are left out."""
    limits, wanted = _limits(framework), framework.wanted
    in_ms = {name for each in framework.phases.values() for name in each.names if is_in_ms(name)}
    by_worker = {worker_id: _Process(process) for worker_id, process in framework.phases.items()}
    met: set[str] = set()
    timed, untimed = set[str](), dict[int, set[str]]()
    """Names in the rows that have times, and by step in the others: a row that was cut off shares some."""
    ahead: tuple[int | None, dict[str, float]] = None, {}
    for row in rows:
        values = {framework.bare(name): value for name, value in row.values.items()}
        met |= values.keys()
        kept = {name: value for name, value in values.items() if name in wanted or name.startswith(framework.reported)}
        kept |= {name: kept[name] / 1e3 for name in in_ms & kept.keys()}
        try:
            number = _step_number(framework, row, values)
            _check(kept, limits)
        except RefusedNumberError:
            tally.bad_lines += 1
            continue
        # Some frameworks write other metrics of a step before its times.
        known = {**ahead[1], **kept} if number is not None and ahead[0] == number else kept
        owner = next((each for each in by_worker.values() if each.marks & kept.keys()), None)
        if owner is not None:
            owner.add(number, known, row.time_ns)
            timed |= kept.keys()
            continue
        for each in by_worker.values():
            if number in each.steps:
                each.steps[number].values.update(kept)
        if kept:
            ahead = number, known
            if number is not None:
                untimed.setdefault(number, set()).update(kept)
    cut = {number for number, names in untimed.items() if names & timed}
    return _in_steps(by_worker, framework, met, cut), frozenset(met)


def _in_steps(
    by_worker: Mapping[str, _Process], framework: Framework, met: set[str], cut: set[int]
) -> tuple[ProcessSteps, ...]:
    processes = list[ProcessSteps]()
    for name, each in by_worker.items():
        if each.steps:
            whole = _begun_and_ended(each.steps, each.process)
            cut_off, steps = frozenset((cut | each.steps.keys()) - whole.keys()), _of_each_step(whole, each.process)
            processes.append(ProcessSteps(name, each.process, steps, each.repeated, cut_off))
    for each in processes:
        if framework.rows_are_means:
            _count_steps(each.steps)
        if each.process.late_when in met:
            _move_step_times(each)
    return tuple(processes)


def _check(kept: Mapping[str, float], limits: Mapping[str, float]) -> None:
    """Raise RefusedNumberError if a value is out of range; NaN is no value."""
    for name in limits.keys() & kept.keys():
        if not math.isnan(kept[name]):
            amount(kept[name], limits[name])


def _count_steps(steps: tuple[Step, ...]) -> None:
    """Count the steps since the previous row, which a row averages; the first row gets the second's count."""
    for before, step in pairwise(steps):
        step.count = max(1, step.number - before.number)
    if len(steps) > 1:
        steps[0].count = min(max(1, steps[0].number), steps[1].count)


def _move_step_times(steps: ProcessSteps) -> None:
    """Give each step the time in the next step's row; no row has the time of the last step."""
    for before, step in pairwise(steps.steps):
        for name in steps.process.step:
            before.values.pop(name, None)
            if name in step.values and step.number == before.number + 1:
                before.values[name] = step.values[name]
    for name in steps.process.step:
        steps.steps[-1].values.pop(name, None)


def _of_each_step(steps: Mapping[int, Step], process: Process) -> tuple[Step, ...]:
    """Return the steps in order, with what each adds to the metrics that count from the start of the run.

    A row may stand for the steps since the previous one. What the first row counts began before a log that is cut off.
    """
    ordered = _in_order(steps)
    counted = {phase.metric for phase in process.order if phase.is_cumulative and phase.metric}
    for before, step in reversed([*pairwise(ordered)]):
        for name in counted & step.values.keys() & before.values.keys():
            total, earlier = step.values[name], before.values[name]
            # A counter that fell began anew.
            step.values[name] = (total - earlier if total >= earlier else total) / (step.number - before.number)
    return ordered[1:] if counted and ordered[0].number > 1 else ordered


def _begun_and_ended(steps: Mapping[int, Step], process: Process) -> Mapping[int, Step]:
    """Return the steps without those whose row was cut short: others have the time of the step or of its training."""
    ends = {*process.step, *(name for each in process.order if each.kind is PhaseKind.TRAIN for name in each.names)}
    whole = {number: step for number, step in steps.items() if process.step and ends & step.values.keys()}
    return whole or steps


def _in_order(steps: Mapping[int, Step]) -> tuple[Step, ...]:
    """Return the steps by number, without those written before their predecessor: they are of an abandoned attempt."""
    ordered: list[Step] = []
    for number in sorted(steps):
        step = steps[number]
        if not ordered or step.end_ns is None or (ordered[-1].end_ns or 0) <= step.end_ns:
            ordered.append(step)
    return tuple(ordered)


def _step_number(framework: Framework, row: MetricRow, values: Mapping[str, float]) -> int | None:
    stated = next((values[name] for name in framework.recognize.step if name in values), None)
    stated = row.step if stated is None or math.isnan(stated) else stated
    return None if stated is None else whole(stated, MOST_STEPS)


def read_steps(
    source: ImportSource,
    framework: Framework,
    target: ImportTarget,
    progress: Progress,
    settings: Mapping[str, Any] | None = None,
) -> StepLog:
    """Read a metrics file. Raises ImportFileError if it contains no step of the framework.

    settings: those that other files state, by name.
    """
    carrier, release = carrier_of(source), _release_of(framework, names_in(source))
    tally, log = Tally(progress), None
    if carrier is not None and release is not None:
        rows = _rows_of(carrier, source, tally)
        log = step_log(rows, release, tally, settings)
    if carrier is None or log is None:
        raise ImportFileError.of(
            source.path,
            found=f"no step of {framework.name}",
            expected=known_names(framework),
            next_step="Pass the file that contains them, or omit --as.",
        )
    if source.own is not None:
        _tell_of_unmet(source, log, target)
    target.add_file(carrier.name, tally.source_file(source.path))
    if tally.is_local and target.clock == "wall":
        target.clock = "local"
    if source.later:
        names = ", ".join(dict.fromkeys(f"{path.parent.name}/{path.name}" for path in source.paths))
        target.note(f"{len(source.paths)} files are read as one run that was started again: {names}")
    return log


def _tell_of_unmet(source: ImportSource, log: StepLog, target: ImportTarget) -> None:
    """Refuse metrics of `--phases` that no row has, whose time would be missing, and note those of a user's table.

    A run that goes on may have them later.
    """
    for each in log.processes:
        met = {name for step in each.steps for name in step.values}
        wanted = [each.process.step, *(phase.names for phase in each.process.order)]
        unmet = [names[0] for names in wanted if names and not met.intersection(names)]
        if unmet and log.framework.name == OWN and not target.is_growing:
            raise ImportFileError.of(
                source.path,
                found=f"no value of {', '.join(f'`{name}`' for name in unmet)}",
                expected="seconds of each metric of --phases, such as `NAME: 12.3`, `NAME=12.3s` or `NAME 12.3s`",
                next_step="Name metrics that the file has, and omit phases that it has not printed yet.",
            )
        if unmet:
            target.note(f"No step has {', '.join(f'`{name}`' for name in unmet)}, which you named")


def _rows_of(carrier: Carrier, source: ImportSource, tally: Tally) -> Iterator[MetricRow]:
    for path in source.paths:
        yield from carrier.rows(path, tally)
        if path != source.paths[-1]:
            tally.earlier.append({**tally.config})


def step_log(
    rows: Iterator[MetricRow], release: Framework, tally: Tally, settings: Mapping[str, Any] | None = None
) -> StepLog | None:
    """Return the steps of these rows, with what the tally holds once they are read; None if they have no step."""
    processes, met = _collect(rows, release, tally)
    if not processes:
        return None
    config = {**(settings or {}), **tally.overrides, **tally.config}
    placement, unsettled = release.placement, release.placement.unsettled_metrics
    is_separate = runs_separately(placement, met, config)
    is_colocated = _is_shown(placement.colocated_metrics, {}, met, config)
    is_known = is_colocated or bool(tally.config) or any(name in config for name in placement.stated_by)
    is_stated = is_separate or is_known or not unsettled
    is_doubtful = not is_stated and _is_shown(unsettled, {}, met, config)
    return StepLog(
        release,
        is_separate or (is_doubtful and _trains_behind(placement, processes)),
        is_stated,
        is_doubtful,
        processes,
        config,
        tally.is_config_unread,
        tuple(_changed(release, [*tally.earlier, config])),
    )


def _changed(framework: Framework, configs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the settings that differ between the starts of a run, with their values in order."""
    for name, products in framework.settings.items():
        values = [whole_setting(config, products) for config in configs]
        stated = [value for value, _ in groupby(value for value in values if value is not None)]
        if len(stated) > 1:
            yield f"{name} {', then '.join(map(str, stated))}"


def runs_separately(placement: Placement, met: frozenset[str], config: Mapping[str, Any]) -> bool:
    """Return whether trainers and samplers have GPUs of their own, by the names in a file and the config."""
    if _is_shown(placement.colocated_metrics, placement.colocated_settings, met, config):
        return False
    return placement.separate or _is_shown(placement.separate_metrics, placement.separate_settings, met, config)


def _trains_behind(placement: Placement, processes: tuple[ProcessSteps, ...]) -> bool:
    """Whether the framework reports a step that trained on samples of earlier weights."""
    return any(
        step.values.get(name, most) > most
        for each in processes
        for step in each.steps
        for name, most in placement.behind.items()
    )


def _is_shown(marks: Names, settings: Mapping[str, str], met: frozenset[str], config: Mapping[str, Any]) -> bool:
    """Whether the file contains one of these names, or the config has one of these settings."""
    prefixes = tuple(mark for mark in marks if mark.endswith("/"))
    values = [(setting(config, path), word) for path, word in settings.items()]
    return (
        not met.isdisjoint(marks)
        or any(name.startswith(prefixes) for name in met)
        or any(
            isinstance(value, int | float) and value > 0 if word == ">" else word in str(value)
            for value, word in values
        )
    )


def _tables(source: ImportSource) -> tuple[Framework, ...]:
    """Return the tables that a file may be of, with those of earlier releases."""
    known = frameworks() if source.own is None else (source.own,)
    return tuple(release for each in known for release in each.releases())


def has_steps_of(role: Role, source: ImportSource) -> bool:
    """Return whether a metrics file contains steps of a role."""
    names = names_in(source)
    return any(
        process.role == role and not {*map(each.bare, names)}.isdisjoint(process.marks)
        for each in _tables(source)
        for process in each.phases.values()
    )


def known_names(framework: Framework) -> str:
    """Return the metrics that identify a framework's files, as a phrase; empty if its table has none."""
    groups = [group for release in framework.releases() for group in release.known_by]
    names = " or ".join(" and ".join(f"`{name}`" for name in group) for group in groups)
    return f"metrics named {names}" if names else ""


def derived_gpus(steps: ProcessSteps) -> int | None:
    """Return the number of GPUs that the process's rates imply; None unless it is within 1% of an integer."""
    names, ratios = steps.process.gpu_ratio or steps.process.gpu_work or (), list[float]()
    for step in steps.steps if names else ():
        above, *factors = (step.values.get(name, 0.0) for name in names)
        below = math.prod(factors)
        if above and below and math.isfinite(above / below):
            ratios.append(above / below)
    ratio = median(ratios) if ratios else 0.0
    gpus = min(round(ratio), MOST_GPUS)
    return gpus if gpus and abs(ratio - gpus) <= _WHOLE_TOLERANCE_RATIO * gpus else None


def phase_value(phase: PhaseMetric, values: Mapping[str, float]) -> float | None:
    """Return the seconds of a phase in a step, at least 0; None if not recorded."""
    value = next((values[name] for name in phase.names if name in values), None)
    if value is None or not math.isfinite(value):
        return None
    return max(0.0, value - sum(values.get(name, 0.0) for name in phase.minus))
