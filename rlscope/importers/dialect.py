"""Dialects: the metric names that each framework uses for the durations of a trainer step.

A dialect is one framework's set of names. Its parties are the processes that log, in most frameworks the trainer alone.
A phase is a metric in seconds, together with the worker's activity during that time; phases are listed in program
order. A metric whose time lies inside another phase is left out of the table, because it would be counted twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class PhaseKind(StrEnum):
    """Activity of a worker during a phase."""

    GENERATE = "generate"
    TAKE = "take"
    """Generates if the roles share their GPUs; waits for samples if they do not."""
    WAIT_SAMPLES = "samples"
    WAIT_CAP = "staleness_cap"
    WAIT_BARRIER = "barrier"
    REWARD = "reward"
    LOGPROBS = "logprobs"
    OTHER = "other"
    CRITIC = "critic"
    """Trains a model other than the policy."""
    TRAIN = "train"
    UPDATE = "update"
    """Publishes the policy's weights, or applies them."""
    SWITCH = "switch"
    """Moves weights or memory between training and generation, without a new version."""
    CHECKPOINT = "checkpoint"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class PhaseMetric:
    """A metric in seconds and the kind of work that it times."""

    name: str | None
    """Name of the metric; None for the part of the step that the other phases leave."""
    kind: PhaseKind
    minus: tuple[str, ...] = ()
    """Metrics of other phases whose time lies inside this one."""
    is_cumulative: bool = False
    """Whether the metric counts from the start of the run."""
    where: Literal["inside", "before", "after", "auto"] = "inside"
    """Position relative to the time of the step's metric. auto: inside if the sums then close better, else before."""
    also: tuple[str, ...] = ()
    """Names of this metric in other releases."""
    when: Literal["always", "separate", "colocated"] = "always"
    """Runs in which the phase counts. In other runs it overlaps with the trainer's work."""


@dataclass(frozen=True, slots=True)
class Party:
    """A process that logs steps."""

    worker: str
    role: Literal["trainer", "sampler", "controller"]
    known_by: tuple[str, ...]
    """Names that identify the party: any one of them in a row is enough."""
    step: tuple[str, ...]
    """Names of the metric for the whole step. Without any, the step is the sum of the phases."""
    phases: tuple[PhaseMetric, ...]
    late_when: str | None = None
    """A metric that only runs write whose rows state the duration of the previous row's step."""
    gpu_ratio: tuple[str, str] | None = None
    """Two rates whose quotient is the number of GPUs."""
    gpu_work: tuple[str, str, str] | None = None
    """Metrics in tokens, seconds, and tokens per second and GPU; together they give the number of GPUs."""


Paths = tuple[str, ...]
"""Settings of a framework's config, as dotted paths; their values are multiplied."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The names of one framework."""

    framework: str
    """Name of the framework, as `--as` accepts it."""
    title: str
    known_by: tuple[tuple[str, ...], ...]
    """Groups of names that identify the dialect: a file has all names of at least one group."""
    parties: tuple[Party, ...]
    separate_when: tuple[str, ...] = ()
    """Names that only runs with separate trainer and sampler GPUs write. A name that ends in / matches as a prefix."""
    separate_config: tuple[tuple[str, str], ...] = ()
    """Settings of such runs: a dotted path and a word that its value contains, or > for a number above 0."""
    is_separate: bool = False
    """Whether runs have separate GPUs unless a field below shows otherwise."""
    colocated_when: tuple[str, ...] = ()
    """Names that only runs whose roles share their GPUs write. A name that ends in / matches as a prefix."""
    colocated_config: tuple[tuple[str, str], ...] = ()
    unsettled_when: tuple[str, ...] = ()
    """Names or prefixes that both kinds of runs write: only the config, or a name above, can decide."""
    behind: Mapping[str, float] = field(default_factory=dict[str, float])
    """Metrics and the values that they exceed only in runs that train on samples of earlier weights."""
    adds_up: bool = False
    """Whether phases of a run with shared GPUs add up to its step. If they do not, the GPUs are separate."""
    strip: tuple[str, ...] = ()
    """Prefixes that a writer puts before all names."""
    step_names: tuple[str, ...] = ()
    """Metrics that hold the optimizer step, for files whose records count something else as the step."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Columns of train_steps and the metrics that fill them."""
    reported: tuple[str, ...] = ()
    """Prefixes of the framework's other metrics, which are shown unchanged."""
    gpus: Mapping[str, tuple[Paths, ...]] = field(default_factory=dict[str, tuple[Paths, ...]])
    """Number of GPUs by role: the first product of settings that are all known."""
    settings: Mapping[str, tuple[Paths, ...]] = field(default_factory=dict[str, tuple[Paths, ...]])
    """Entries of run.json's config: the first product of settings that are all known."""
    eras: tuple[tuple[str, str], ...] = ()
    """Prefixes, and the generation of names that each indicates; the first match is used."""
    closes: bool = False
    """Whether the phases are known to add up to the step. If their sum is off, the file has unknown names."""
    means_over_steps: bool = False
    """Whether a row holds means over the steps since the previous row."""
