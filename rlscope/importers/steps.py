"""Reads metrics with a framework's dialect: one list of steps for each process that logs.

Only values that the dialect names are kept, so that a log of gigabytes takes a few kilobytes per step. `layout.py`
places the steps in time.
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
from rlscope.importers.dialect import Dialect, Party, Paths, PhaseMetric
from rlscope.importers.dialects import DIALECTS
from rlscope.importers.importer import ImportSource, Progress
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
"""All carriers; those with unmistakable formats come first."""
_ROWS_TO_KNOW: Final = 200
_BYTES_TO_KNOW: Final = 16 << 20
"""A log begins with its config and the start of every worker, often beyond the first 256 kB."""
_WHOLE_TOLERANCE_RATIO: Final = 0.01


@dataclass(slots=True)
class Step:
    """The logged values of one step."""

    number: int
    end_ns: int | None
    count: int = 1
    """Number of steps that the values are the mean of."""
    values: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class PartySteps:
    """The steps of one process that logs, in order."""

    party: Party
    steps: tuple[Step, ...]
    repeated: int = 0
    """Number of steps written again with other values, by a resumed run or by another run."""


@dataclass(frozen=True, slots=True)
class StepLog:
    """The contents of a metrics file, read with a dialect."""

    dialect: Dialect
    era: str | None
    is_separate: bool
    is_stated: bool
    """Whether the file states `is_separate`; otherwise the user's options take precedence."""
    is_doubtful: bool
    """Whether `is_separate` is only inferred from the staleness that the framework reports."""
    parties: tuple[PartySteps, ...]
    config: Mapping[str, Any]
    host: str | None
    gpu_readings: tuple[GpuReading, ...] = ()
    is_config_unread: bool = False

    def gpus(self, role: str) -> int | None:
        """Return the GPUs of a role, from the framework's config."""
        return self._whole(self.dialect.gpus.get(role, ()))

    def settings(self) -> dict[str, int]:
        """Return the entries for run.json's config that the framework's config states."""
        found = {name: self._whole(products) for name, products in self.dialect.settings.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _whole(self, products: tuple[Paths, ...]) -> int | None:
        for paths in products:
            factors = [setting(self.config, path) for path in paths]
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
    return _names(source.path, source.path.stat().st_size if source.path.is_file() else -1, source)


@lru_cache(maxsize=16)
def _names(_path: Path, _bytes: int, source: ImportSource) -> frozenset[str]:
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
    """Stops reading after the first part of a file."""


def carrier_of(source: ImportSource) -> Carrier | None:
    """Return the carrier of a metrics file; None for any other file."""
    return next((each for each in CARRIERS if each.fits(source)), None) if source.head else None


def _bare(dialect: Dialect, name: str) -> str:
    return next((name.removeprefix(each) for each in dialect.strip if name.startswith(each)), name)


def recognise_steps(framework: str, source: ImportSource) -> str | None:
    """Return which of the framework's step metrics a file contains; None if there are none."""
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
    """Return the steps of each party, and all metric names. Rows with out-of-range values are left out."""
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
    """Whether a row is of another attempt at a step: it has the same time metrics with other values."""
    names = [name for name in (*party.step, *party.known_by) if name in held and name in found]
    return any(held[name] != found[name] for name in names)


def _count_steps(steps: tuple[Step, ...]) -> None:
    """Count the steps since the previous row, which a row averages; the first row gets the second's count."""
    for before, step in pairwise(steps):
        step.count = max(1, step.number - before.number)
    if len(steps) > 1:
        steps[0].count = min(max(1, steps[0].number), steps[1].count)


def _move_step_times(steps: PartySteps) -> None:
    """Give each step the time in the next step's row; no row has the time of the last step."""
    for before, step in pairwise(steps.steps):
        for name in steps.party.step:
            before.values.pop(name, None)
            if name in step.values and step.number == before.number + 1:
                before.values[name] = step.values[name]
    for name in steps.party.step:
        steps.steps[-1].values.pop(name, None)


def _in_order(steps: Mapping[int, Step]) -> tuple[Step, ...]:
    """Return the steps by number, without those written before their predecessor: they are of an abandoned attempt."""
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


def read_steps(source: ImportSource, framework: str, target: ImportTarget, progress: Progress) -> StepLog:
    """Read a metrics file. Raises ImportFileError if it contains no step of the framework."""
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
    """Whether the framework reports a step that trained on samples of earlier weights."""
    return any(
        step.values.get(name, most) > most
        for each in parties
        for step in each.steps
        for name, most in dialect.behind.items()
    )


def _is_shown(
    marks: tuple[str, ...], settings: tuple[tuple[str, str], ...], met: frozenset[str], config: Mapping[str, Any]
) -> bool:
    """Whether the file contains one of these names, or the config has one of these settings."""
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


def tells_samplers(source: ImportSource) -> bool:
    """Whether a metrics file contains sampler steps, so that the samplers' work need not be inferred."""
    names = names_in(source)
    return any(
        party.role == "sampler" and names.intersection(party.known_by) for each in DIALECTS for party in each.parties
    )


def has_trainer_steps(source: ImportSource) -> bool:
    """Whether a metrics file contains trainer steps."""
    names = names_in(source)
    for each in DIALECTS:
        bare = {_bare(each, name) for name in names}
        if any(party.role == "trainer" and bare.intersection(party.known_by) for party in each.parties):
            return True
    return False


def known_names(framework: str) -> str:
    """Return the metrics that identify a framework's files, as a phrase; empty if it has no dialect."""
    names = " or ".join(_known_names(each) for each in DIALECTS if each.framework == framework)
    return f"metrics named {names}" if names else ""


def _no_steps(source: ImportSource, framework: str) -> ImportFileError:
    return ImportFileError.of(
        source.path,
        found=f"no step of {framework}",
        expected=known_names(framework),
        next_step="Pass the file that contains them, or omit --as.",
    )


def derived_gpus(steps: PartySteps) -> int | None:
    """Return the number of GPUs that the party's rates imply; None unless it is within 1% of an integer."""
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


def phase_value(phase: PhaseMetric, values: Mapping[str, float]) -> float | None:
    """Return the seconds of a phase in a step, at least 0; None if not recorded."""
    value = next((values[name] for name in (phase.name or "", *phase.also) if name in values), None)
    if value is None or not math.isfinite(value):
        return None
    return max(0.0, value - sum(values.get(name, 0.0) for name in phase.minus))
