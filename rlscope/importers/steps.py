"""Reads a trainer's metrics by a dialect: one list of steps for each process that logs, with the values that are named.

Only values that the dialect names are kept, so that a log of gigabytes holds a few kilobytes a step. What a run made of
them is laid out in `layout.py`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from rlscope.errors import ImportFileError
from rlscope.importers.console import CONSOLE
from rlscope.importers.dialect import Dialect, Party, Paths, Phase
from rlscope.importers.dialects import DIALECTS
from rlscope.importers.importer import Progress, Source
from rlscope.importers.quantities import (
    LONGEST_S,
    MOST,
    MOST_GPUS,
    MOST_STEPS,
    RefusedNumberError,
    amount,
    whole,
)
from rlscope.importers.records import CSV, JSONL, SQLITE, TRAINER_STATE
from rlscope.importers.rows import Carrier, GpuReading, MetricRow, Tally
from rlscope.importers.target import ImportTarget
from rlscope.importers.tensorboard import TENSORBOARD
from rlscope.importers.wandb import WANDB

CARRIERS: Final = (WANDB, TENSORBOARD, SQLITE, TRAINER_STATE, JSONL, CSV, CONSOLE)
"""Those that are sure of their form first."""
_ROWS_TO_KNOW: Final = 200
_BYTES_TO_KNOW: Final = 16 << 20
"""A log begins with its config and the start of every worker, often beyond the first 256 kB."""
_WHOLE_TOLERANCE_RATIO: Final = 0.01


@dataclass(slots=True)
class Step:
    """What was logged of one step."""

    number: int
    end_ns: int | None
    count: int = 1
    """Steps that it is the mean of."""
    values: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class PartySteps:
    """The steps of one process that logs, in order."""

    party: Party
    steps: tuple[Step, ...]
    repeated: int = 0
    """Times that a step was written once more with other numbers: of a run that was resumed, or of another run."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """All that a file of metrics says, by a dialect."""

    dialect: Dialect
    era: str | None
    is_separate: bool
    is_stated: bool
    """Whether the file tells that; otherwise the user's word counts before it."""
    is_doubtful: bool
    """Whether it is only what the staleness that the framework reports makes likely."""
    parties: tuple[PartySteps, ...]
    config: Mapping[str, Any]
    host: str | None
    gpu_readings: tuple[GpuReading, ...] = ()
    is_config_unread: bool = False

    def gpus(self, role: str) -> int | None:
        """GPUs of a role, by the framework's own config."""
        return self._whole(self.dialect.gpus.get(role, ()))

    def settings(self) -> dict[str, int]:
        """Entries of run.json's config that the framework's own config states."""
        found = {name: self._whole(products) for name, products in self.dialect.settings.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _whole(self, products: tuple[Paths, ...]) -> int | None:
        for paths in products:
            factors = [setting(self.config, path) for path in paths]
            if all(isinstance(each, int) and not isinstance(each, bool) and 0 < each <= MOST_STEPS for each in factors):
                return math.prod(int(each) for each in factors)
        return None


def setting(config: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401
    """The setting at a dotted path, nested or under its dotted name; None where there is none."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return config.get(path) if value is None else value


def names_in(source: Source) -> frozenset[str]:
    """The names of the metrics in the first rows of a file, of whatever form; empty for no file of metrics."""
    return _names(source.path, source.path.stat().st_size if source.path.is_file() else -1, source)


@lru_cache(maxsize=16)
def _names(_path: Path, _bytes: int, source: Source) -> frozenset[str]:
    carrier = carrier_of(source)
    if carrier is None:
        return frozenset()
    left = _BYTES_TO_KNOW

    def spend(read: int) -> None:
        nonlocal left
        left -= read
        if left <= 0:
            raise _EnoughReadError

    names: set[str] = set()
    try:
        for row in islice(carrier.rows(source.path, Tally(), spend), _ROWS_TO_KNOW):
            names |= row.values.keys()
    except (_EnoughReadError, OSError, ImportFileError):
        pass
    return frozenset(names)


class _EnoughReadError(Exception):
    """Ends a look at the first part of a file."""


def carrier_of(source: Source) -> Carrier | None:
    """The form of a file of metrics; None for any other."""
    return next((each for each in CARRIERS if each.fits(source)), None) if source.head else None


def _bare(dialect: Dialect, name: str) -> str:
    return next((name.removeprefix(each) for each in dialect.strip if name.startswith(each)), name)


def recognise_steps(framework: str, source: Source) -> str | None:
    """Which names of the framework's steps a file holds; None where it holds none."""
    names = names_in(source)
    dialect = _dialect_of(framework, names)
    return None if dialect is None else f"metrics named {_known_names(dialect)}"


def _known_names(dialect: Dialect) -> str:
    return " or ".join(" and ".join(f"`{name}`" for name in names) for names in dialect.known_by)


def _dialect_of(framework: str, names: frozenset[str]) -> Dialect | None:
    for dialect in DIALECTS:
        if dialect.framework != framework:
            continue
        bare = {_bare(dialect, name) for name in names}
        if any(set(names) <= bare for names in dialect.known_by):
            return dialect
    return None


def _limits(dialect: Dialect) -> dict[str, float]:
    """Return the most that the metrics of times and counts can be, by name."""
    limits: dict[str, float] = {}
    for party in dialect.parties:
        phases = [name for phase in party.phases for name in (phase.name, *phase.also, *phase.minus) if name]
        limits |= dict.fromkeys((*party.step, *phases), LONGEST_S)
    for column in ("tokens", "samples"):
        limits |= dict.fromkeys(dialect.columns.get(column, ()), MOST)
    return limits


def _wanted(dialect: Dialect) -> frozenset[str]:
    names: set[str] = set()
    for party in dialect.parties:
        names.update(party.step, party.known_by, party.gpu_ratio or (), party.gpu_work or ())
        for phase in party.phases:
            names.update((phase.name or "", *phase.also, *phase.minus))
    for columns in dialect.columns.values():
        names.update(columns)
    return frozenset(names)


def _collect(
    rows: Iterator[MetricRow], dialect: Dialect, tally: Tally
) -> tuple[tuple[PartySteps, ...], frozenset[str]]:
    """The steps of each party, and all names that were met. A row with a number that no run can have is left out."""
    limits, wanted, reported = _limits(dialect), _wanted(dialect), dialect.reported
    by_party: list[dict[int, Step]] = [{} for _ in dialect.parties]
    met: set[str] = set()
    repeated = [0] * len(by_party)
    for row in rows:
        values = {_bare(dialect, name): value for name, value in row.values.items()}
        met |= values.keys()
        kept = {name: value for name, value in values.items() if name in wanted or name.startswith(reported)}
        owner = _party_of(dialect, kept)
        try:
            number = _step_number(dialect, row, values)
            for name in limits.keys() & kept.keys():
                if not math.isnan(kept[name]):
                    amount(kept[name], limits[name])
        except RefusedNumberError:
            tally.bad_lines += 1
            continue
        if owner is None:
            for steps in by_party:
                if number in steps:
                    steps[number].values.update(kept)
            continue
        steps = by_party[owner]
        known = number if number is not None else max(steps, default=0) + 1
        step = steps.setdefault(known, Step(known, None))
        if _is_another(step.values, kept, dialect.parties[owner]):
            repeated[owner] += 1
            step.values = {}
        step.values.update(kept)
        step.end_ns = row.time_ns if row.time_ns is not None else step.end_ns
    parties = tuple(
        PartySteps(party, _in_order(steps), times)
        for party, steps, times in zip(dialect.parties, by_party, repeated, strict=True)
        if steps
    )
    if dialect.means_over_steps:
        for each in parties:
            _count_steps(each.steps)
    for each in parties:
        if each.party.late_when in met:
            _move_step_times(each)
    return parties, frozenset(met)


def _is_another(held: Mapping[str, float], found: Mapping[str, float], party: Party) -> bool:
    """Whether a row is of another attempt at a step: it states the same times, and other ones."""
    names = [name for name in (*party.step, *party.known_by) if name in held and name in found]
    return any(held[name] != found[name] for name in names)


def _count_steps(steps: tuple[Step, ...]) -> None:
    """A row is the mean of the steps since the row before it; how many the first one stands for is that of the next."""
    for before, step in pairwise(steps):
        step.count = max(1, step.number - before.number)
    if len(steps) > 1:
        steps[0].count = min(max(1, steps[0].number), steps[1].count)


def _move_step_times(steps: PartySteps) -> None:
    """Give each step the time that the row of the next one states; the last step's is in no row."""
    for before, step in pairwise(steps.steps):
        for name in steps.party.step:
            before.values.pop(name, None)
            if name in step.values and step.number == before.number + 1:
                before.values[name] = step.values[name]
    for name in steps.party.step:
        steps.steps[-1].values.pop(name, None)


def _in_order(steps: Mapping[int, Step]) -> tuple[Step, ...]:
    """By number. A step written before the step that precedes it is of an attempt that was given up: it is left out."""
    ordered: list[Step] = []
    for number in sorted(steps):
        step = steps[number]
        if not ordered or step.end_ns is None or (ordered[-1].end_ns or 0) <= step.end_ns:
            ordered.append(step)
    return tuple(ordered)


def _party_of(dialect: Dialect, values: Mapping[str, float]) -> int | None:
    for index, party in enumerate(dialect.parties):
        if any(name in values for name in party.known_by):
            return index
    return None


def _step_number(dialect: Dialect, row: MetricRow, values: Mapping[str, float]) -> int | None:
    stated = next((values[name] for name in dialect.step_names if name in values), None)
    stated = row.step if stated is None or math.isnan(stated) else stated
    return None if stated is None else whole(stated, MOST_STEPS)


def read_steps(source: Source, framework: str, target: ImportTarget, progress: Progress) -> StepLog:
    """Read a file of metrics whole. Raises ImportFileError where it holds no step of the framework."""
    carrier, dialect = carrier_of(source), _dialect_of(framework, names_in(source))
    if carrier is None or dialect is None:
        raise _no_steps(source, framework)
    tally = Tally()
    parties, met = _collect(carrier.rows(source.path, tally, progress), dialect, tally)
    if not parties:
        raise _no_steps(source, framework)
    target.add_file(carrier.name, tally.source_file(source.path))
    era = next((era for prefix, era in dialect.eras if any(name.startswith(prefix) for name in met)), None)
    config = {**tally.overrides, **tally.config}
    is_separate = _is_separate(dialect, met, config)
    is_stated = is_separate or bool(tally.config) or not dialect.unsettled_when
    is_doubtful = not is_stated and _is_shown(dialect.unsettled_when, (), met, config)
    return StepLog(
        dialect,
        era,
        is_separate or (is_doubtful and _trains_behind(dialect, parties)),
        is_stated,
        is_doubtful,
        parties,
        config,
        tally.host,
        tuple(tally.gpu_readings),
        tally.is_config_unread,
    )


def _is_separate(dialect: Dialect, met: frozenset[str], config: Mapping[str, Any]) -> bool:
    if _is_shown(dialect.colocated_when, dialect.colocated_config, met, config):
        return False
    return dialect.is_separate or _is_shown(dialect.separate_when, dialect.separate_config, met, config)


def _trains_behind(dialect: Dialect, parties: tuple[PartySteps, ...]) -> bool:
    """Whether some step trained on samples of earlier weights, by the framework's own word."""
    return any(
        step.values.get(name, most) > most
        for each in parties
        for step in each.steps
        for name, most in dialect.behind.items()
    )


def _is_shown(
    marks: tuple[str, ...], settings: tuple[tuple[str, str], ...], met: frozenset[str], config: Mapping[str, Any]
) -> bool:
    """Whether one of these names was met, or one of these settings has the value."""
    for mark in marks:
        if mark in met or (mark.endswith("/") and any(name.startswith(mark) for name in met)):
            return True
    for path, word in settings:
        value = setting(config, path)
        if word == ">":
            if isinstance(value, int | float) and value > 0:
                return True
        elif word in str(value):
            return True
    return False


def tells_samplers(source: Source) -> bool:
    """Whether a file of metrics holds steps of the samplers, so that nobody needs to infer what they do."""
    names = names_in(source)
    return any(
        party.role == "sampler" and names.intersection(party.known_by) for each in DIALECTS for party in each.parties
    )


def has_trainer_steps(source: Source) -> bool:
    """Whether a file of metrics holds steps of the trainer."""
    names = names_in(source)
    for each in DIALECTS:
        bare = {_bare(each, name) for name in names}
        if any(party.role == "trainer" and bare.intersection(party.known_by) for party in each.parties):
            return True
    return False


def known_names(framework: str) -> str:
    """The metrics by which a framework's files are known, as a phrase; empty for one whose metrics nobody reads."""
    names = " or ".join(_known_names(each) for each in DIALECTS if each.framework == framework)
    return f"metrics named {names}" if names else ""


def _no_steps(source: Source, framework: str) -> ImportFileError:
    return ImportFileError.of(
        source.path,
        found=f"no step of {framework}",
        expected=known_names(framework),
        next_step="Pass the file that contains them, or omit --as.",
    )


def derived_gpus(steps: PartySteps) -> int | None:
    """The number of GPUs that the party's own rates imply, within 1% of a whole number; None where they do not."""
    party, ratios = steps.party, list[float]()
    for step in steps.steps:
        if party.gpu_ratio is not None:
            above, below = (step.values.get(name) for name in party.gpu_ratio)
        elif party.gpu_work is not None:
            tokens, seconds, rate = (step.values.get(name) for name in party.gpu_work)
            above, below = tokens, None if seconds is None or rate is None else seconds * rate
        else:
            return None
        if above and below and math.isfinite(above / below):
            ratios.append(above / below)
    middle = median(ratios) if ratios else 0.0
    gpus = round(middle)
    is_count = 1 <= gpus <= MOST_GPUS and abs(middle - gpus) <= _WHOLE_TOLERANCE_RATIO * gpus
    return gpus if is_count else None


def phase_value(phase: Phase, values: Mapping[str, float]) -> float | None:
    """Seconds of a phase in a step, at least 0; None where the step does not state it."""
    value = next((values[name] for name in (phase.name or "", *phase.also) if name in values), None)
    if value is None or not math.isfinite(value):
        return None
    return max(0.0, value - sum(values.get(name, 0.0) for name in phase.minus))
