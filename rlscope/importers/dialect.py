"""What a dialect is: the names under which one framework writes what a step of its trainer took.

A dialect is one framework's set of names. Its parties are the processes that log: mostly the trainer alone. A phase is
a metric in seconds, and what the worker does meanwhile; phases are listed in the order of the program. A metric whose
time lies inside that of another phase is left out of the table, since it would count twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class PhaseKind(StrEnum):
    """What a worker does in a phase."""

    GENERATE = "generate"
    TAKE = "take"
    """Generates where the roles share their GPUs, waits for samples where they do not."""
    WAIT_SAMPLES = "samples"
    WAIT_CAP = "staleness_cap"
    WAIT_BARRIER = "barrier"
    REWARD = "reward"
    LOGPROBS = "logprobs"
    OTHER = "other"
    CRITIC = "critic"
    """Trains a model that is not the policy."""
    TRAIN = "train"
    UPDATE = "update"
    """Publishes the policy's weights, or applies them."""
    SWITCH = "switch"
    """Moves weights or memory between training and generation without a new version."""
    CHECKPOINT = "checkpoint"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class PhaseMetric:
    """A metric in seconds and what it is the time of."""

    name: str | None
    """None: what the other phases leave of the step."""
    kind: PhaseKind
    minus: tuple[str, ...] = ()
    """Metrics whose time lies inside this one and belongs to other phases."""
    is_cumulative: bool = False
    """Whether the metric counts from the start of the run."""
    where: Literal["inside", "before", "after", "auto"] = "inside"
    """Of the time that the step's own metric counts. auto: inside if the sums close better that way, else before."""
    also: tuple[str, ...] = ()
    """Other names of the same metric, of other releases."""
    when: Literal["always", "separate", "colocated"] = "always"
    """In which runs the phase counts: in others it overlaps with what the trainer does."""


@dataclass(frozen=True, slots=True)
class Party:
    """A process that logs steps."""

    worker: str
    role: Literal["trainer", "sampler", "controller"]
    known_by: tuple[str, ...]
    """A row with any of these is this party's."""
    step: tuple[str, ...]
    """The time of the whole step, by its names; none: the sum of the phases."""
    phases: tuple[PhaseMetric, ...]
    late_when: str | None = None
    """A metric of runs whose rows state the time of the step before theirs."""
    gpu_ratio: tuple[str, str] | None = None
    """Two rates whose quotient is the number of GPUs."""
    gpu_work: tuple[str, str, str] | None = None
    """Tokens, seconds and tokens per second and GPU, of which the number of GPUs follows."""


Paths = tuple[str, ...]
"""Settings of a framework's config, dotted; their product is meant."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one framework."""

    framework: str
    """As `--as` takes it."""
    title: str
    known_by: tuple[tuple[str, ...], ...]
    """All names of one of these are found in a file of this dialect."""
    parties: tuple[Party, ...]
    separate_when: tuple[str, ...] = ()
    """Names, or with a / at the end their beginnings, that only runs with separate trainer and sampler GPUs write."""
    separate_config: tuple[tuple[str, str], ...] = ()
    """The same of settings: a dotted path, and a word that its value contains; > for a number above 0."""
    is_separate: bool = False
    """Whether runs have separate GPUs unless something below shows otherwise."""
    colocated_when: tuple[str, ...] = ()
    """Names, or with a / at the end their beginnings, that only runs write whose roles share their GPUs."""
    colocated_config: tuple[tuple[str, str], ...] = ()
    unsettled_when: tuple[str, ...] = ()
    """Names, or their beginnings, of runs of either kind: only the config tells, or one of the names above."""
    behind: Mapping[str, float] = field(default_factory=dict[str, float])
    """Metrics that are larger than this in runs that train on samples of earlier weights."""
    adds_up: bool = False
    """Whether the step of a run that shares its GPUs is the sum of its phases: any other sum shows separate ones."""
    strip: tuple[str, ...] = ()
    """Beginnings of names that a writer puts before all of them."""
    step_names: tuple[str, ...] = ()
    """Metrics that hold the optimizer step, where the record's own step counts something else."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Columns of train_steps, by the names of the metrics."""
    reported: tuple[str, ...] = ()
    """Beginnings of names of the framework's own figures, which are shown as it reports them."""
    gpus: Mapping[str, tuple[Paths, ...]] = field(default_factory=dict[str, tuple[Paths, ...]])
    """GPUs by role: the first product of settings that is known."""
    settings: Mapping[str, tuple[Paths, ...]] = field(default_factory=dict[str, tuple[Paths, ...]])
    """Entries of run.json's config: the first product of settings that is known."""
    eras: tuple[tuple[str, str], ...] = ()
    """Beginnings of names, and the set of names that they show; the first that is met."""
    closes: bool = False
    """Whether the phases are known to add up to the step: a sum that is off then means unknown names."""
    means_over_steps: bool = False
    """Whether a row is a mean over the steps since the row before it."""
