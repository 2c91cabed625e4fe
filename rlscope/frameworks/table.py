"""The table of a framework: its metrics, console lines, settings, advice and documentation, read from a TOML file.

A framework's metrics are the same in every file format, so one table serves all importers. Durations are in seconds,
and the phases of a process are listed in program order. A metric whose time lies inside another phase is left out,
because it would be counted twice.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetPydanticSchema, TypeAdapter
from pydantic_core import core_schema

from rlscope.errors import ImportFileError
from rlscope.input_file import FileKind, read_source

TABLE_FILE: Final = FileKind(
    "a table of a framework", "docs/importers.md#your-own-framework shows a table.", error=ImportFileError
)


class PhaseKind(StrEnum):
    """Activity of a worker during a phase."""

    GENERATE = "generate"
    TAKE = "take"
    """Generates if the roles share their GPUs; waits for samples if they do not."""
    WAIT_SAMPLES = "samples"
    WAIT_CAP = "staleness_cap"
    WAIT_BARRIER = "barrier"
    WAIT_REQUESTS = "requests"
    """A sampler has no requests."""
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
    STARTUP = "startup"

    def settled(self, *, is_separate: bool) -> "PhaseKind":
        """Return what a trainer does, once it is known whether trainers and samplers have GPUs of their own."""
        if self is not PhaseKind.TAKE:
            return self
        return PhaseKind.WAIT_SAMPLES if is_separate else PhaseKind.GENERATE


ACTIVITIES: Final[Mapping[PhaseKind, tuple[str, str | None]]] = {
    PhaseKind.GENERATE: ("generate", None),
    PhaseKind.WAIT_SAMPLES: ("wait", "samples"),
    PhaseKind.WAIT_CAP: ("wait", "staleness_cap"),
    PhaseKind.WAIT_BARRIER: ("wait", "barrier"),
    PhaseKind.WAIT_REQUESTS: ("wait", "requests"),
    PhaseKind.REWARD: ("reward", None),
    PhaseKind.LOGPROBS: ("logprobs", None),
    PhaseKind.OTHER: ("other", None),
    PhaseKind.CRITIC: ("train", None),
    PhaseKind.TRAIN: ("train", None),
    PhaseKind.SWITCH: ("weight_update", None),
    PhaseKind.UPDATE: ("weight_update", None),
    PhaseKind.CHECKPOINT: ("checkpoint", None),
    PhaseKind.EVAL: ("eval", None),
    PhaseKind.STARTUP: ("startup", None),
}
"""Activity and reason in the trace format, by the kind of phase."""


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(strict=True, min_length=1)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_listed)]
"""Names of metrics or settings; one name may be written without a list."""
NO_LINE: Final = re.compile(r"(?!)")
"""Matches nothing, in the place of a pattern that a table lacks."""


def _with_groups(*names: str) -> BeforeValidator:
    """Compile a regular expression that has these groups."""

    def compiled(text: object) -> re.Pattern[str]:
        """Return the pattern. Raises ValueError if the text is none, or lacks a group."""
        if not isinstance(text, str):
            raise ValueError("a regular expression")
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ValueError(f"a regular expression ({error})") from error
        if missing := {*names} - pattern.groupindex.keys():
            found = ", ".join(sorted(missing))
            raise ValueError(f"a regular expression with the groups {', '.join(names)} (it lacks {found})")
        return pattern

    return BeforeValidator(compiled)


Pattern = Annotated[re.Pattern[str], _with_groups()]
Role = Literal["trainer", "sampler", "controller"]


def _one_of(*names: str) -> GetPydanticSchema:
    """Accept these names only."""
    return GetPydanticSchema(lambda _source, _handler: core_schema.literal_schema(list(names)))


Column = Annotated[
    str, _one_of("tokens", "samples", "loss", "grad_norm", "entropy", "reward_mean", "clip_ratio", "truncated_ratio")
]
_STATED: Final = ("samples_per_step", "group_size", "max_output_tokens", "max_running", "max_staleness")
Setting = Annotated[
    str, _one_of("trainer_gpus", "sampler_gpus", "total_gpus", *_STATED, "gpus_per_engine", "total_steps")
]
_LIMITS: Final = (
    "running_limit",
    "staleness_cap",
    "in_flight_limit",
    "running_samples_limit",
    "queue_capacity_samples",
)
_INTERVALS: Final = ("publish_every", "checkpoints", "evaluation")
UpdatePart = Annotated[str, _one_of("drain", "gather", "convert", "transfer", "install", "resume")]
Action = Annotated[str, _one_of("layout", *_LIMITS, *_INTERVALS, "ahead", "sampler_gpus")]


@dataclass(frozen=True, slots=True)
class PhaseMetric:
    """A metric in seconds and the kind of work that it times."""

    kind: PhaseKind
    metric: Text | None = None
    """None for the part of the step that the other phases leave."""
    is_rest: bool = False
    """Whether the phase is that part in files without the metric."""
    minus: Names = ()
    """Metrics of other phases whose time lies inside this one."""
    is_cumulative: bool = False
    """Whether the metric counts from the start of the run."""
    where: Literal["inside", "before", "after", "auto", "auto_after"] = "inside"
    """Position relative to the time of the step's metric. auto: inside if the sums then close better, else before.
    auto_after: inside if the sums then close better, else after."""
    also: Names = ()
    """Names of this metric in other releases."""
    when: Literal["always", "separate", "colocated"] = "always"
    """Runs in which the phase counts. In other runs it overlaps with the trainer's work."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metric, that of this release first."""
        return tuple(name for name in (self.metric, *self.also) if name)


@dataclass(frozen=True, slots=True)
class Process:
    """The steps that one process logs."""

    order: Annotated[tuple[PhaseMetric, ...], Field(min_length=1)]
    """The phases, in program order."""
    step: Names = ()
    """Names of the metric for the whole step. Without any, the step is the sum of the phases."""
    known_by: Names = ()
    """Names that identify the process: any one of them in a row is enough. Without any: the step and the phases."""
    role: Role = "trainer"
    late_when: Text | None = None
    """A metric that only runs write whose rows state the duration of the previous row's step."""
    gpu_ratio: tuple[Text, Text] | None = None
    """Two rates whose quotient is the number of GPUs."""
    gpu_work: tuple[Text, Text, Text] | None = None
    """Metrics in tokens, seconds, and tokens per second and GPU; together they give the number of GPUs."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics in seconds."""
        return (*self.step, *(name for each in self.order for name in (*each.names, *each.minus)))

    @property
    def marks(self) -> tuple[str, ...]:
        """Names that identify the process."""
        return self.known_by or self.names


@dataclass(frozen=True, slots=True)
class Recognition:
    """Recognition of a file by its metrics, and where the names and the step are."""

    metrics: Annotated[tuple[Names, ...], Field(min_length=1)] = ()
    """Groups of names: a file of the framework has all names of at least one group."""
    strip: Names = ()
    """Prefixes that a writer puts before all names."""
    step: Names = ()
    """Metrics that hold the optimizer step, for files whose records count something else as the step."""
    hints: Names = ()
    """Prefixes of other metrics, which only tell that a file without step times looks like the framework."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Whether trainers and samplers have GPUs of their own."""

    separate: bool = False
    """Whether they have, unless a key below shows otherwise."""
    separate_metrics: Names = ()
    """Names that only such runs write. A name that ends in / matches as a prefix."""
    separate_settings: Mapping[str, Text] = field(default_factory=dict[str, str])
    """Settings of such runs: a dotted path and a word that its value contains, or > for a number above 0."""
    colocated_metrics: Names = ()
    colocated_settings: Mapping[str, Text] = field(default_factory=dict[str, str])
    colocated_update: Literal["publish", "apply"] = "publish"
    """Phase of weight updates if the roles share their GPUs."""
    unsettled_metrics: Names = ()
    """Names or prefixes that both kinds of runs write: only the config, or a name above, can decide."""
    stated_by: Names = ()
    """Settings that every printed config has: one of them shows that the config is known."""
    behind: Mapping[str, float] = field(default_factory=dict[str, float])
    """Metrics and the values that they exceed only in runs that train on samples of earlier weights."""
    separate_unless_phases_add_up: bool = False
    """Whether phases of a run with shared GPUs add up to its step. If they do not, the GPUs are separate."""


@dataclass(frozen=True, slots=True)
class Console:
    """Lines of a framework's console: dictionaries of metrics, timers that start and end, or a block for each step."""

    lead: Pattern = NO_LINE
    """Regular expression of the text before a printed dictionary of metrics; its group `step` is the step."""
    timer: Annotated[re.Pattern[str], _with_groups("ts", "name", "end", "s")] = NO_LINE
    """Regular expression of a timer's line, with the groups `ts`, `name`, `end` (if the timer ends) and `s`."""
    timers: Mapping[str, PhaseKind] = field(default_factory=dict[str, PhaseKind])
    """Timers and what the worker does while they run."""
    parts: Mapping[str, UpdatePart] = field(default_factory=dict[str, str])
    """Timers of the parts of a weight update, in program order."""
    several_print_timers: bool = False
    """Whether several processes print timers of the same names, as a critic beside the trainer does."""
    heading: Annotated[re.Pattern[str], _with_groups("step")] = NO_LINE
    """Regular expression of the line that opens a step's block, with the group `step`, or an epoch, with the group
    `epoch`, if steps are counted from the beginning of their epoch."""
    total: Annotated[re.Pattern[str], _with_groups("s")] = NO_LINE
    """Regular expression of the line that states a step's duration, with the group `s`."""
    phase: Annotated[re.Pattern[str], _with_groups("name", "s")] = NO_LINE
    """Regular expression of the line of a phase in the block, with the groups `name` and `s`. The phases, their order
    and what lies inside another are those of the trainer's metrics, whose names end in these names."""
    nested: Names = ()
    """Phases of the block whose time lies inside another phase."""
    stamp: Annotated[re.Pattern[str], _with_groups("ts")] = NO_LINE
    """Regular expression of other lines of a block that have a time, with the group `ts`."""
    numbers: Mapping[str, Pattern] = field(default_factory=dict[str, re.Pattern[str]])
    """Regular expressions of further numbers, by the name that `columns` below uses."""
    facts: Pattern = NO_LINE
    """Regular expression of the text before a printed dictionary of a step's results, with the groups `ts` and
    `number` if the line has them."""
    step_ends_with: Names = ()
    """Results that are printed last in a step: those printed so far then belong to the training before."""
    columns: Mapping[Column, Names] = field(default_factory=dict[str, tuple[str, ...]])
    """Columns of train_steps and the results that fill them; `a * b` is a product."""
    gpu_ratio: tuple[Text, Text] | None = None
    """Two of the numbers, whose quotient is the number of GPUs."""
    rollout: Text | None = None
    """Result that is printed when a rollout ends and holds its duration in seconds."""
    first_version: int = 0
    """Version of the weights that samplers begin with, if they are published before the first training."""
    workers: Mapping[Role, Text] = field(default_factory=dict[Role, str])
    """Names of the workers."""
    engine: Text | None = None
    """Engine whose log lines are in the console too."""
    lines: Text | None = None
    """The lines that identify the console, in words, for messages."""
    file: Text | None = None
    """The file that has them, in words."""
    unread: Pattern = NO_LINE
    """Regular expression of a line without the durations of phases (a name and a colon finds metrics files too, whose
    names are searched as a console prints them), or of an engine that may log no statistics. `file` is what to pass
    instead."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """Ways to add files that a run lacks, as `rlscope doctor` prints them."""

    engine_log: Text | None = None
    sample_files: Text | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """Names of earlier releases, or of another trainer; what it leaves out is as in the table."""

    metrics: Annotated[tuple[Names, ...], Field(min_length=1)]
    """Groups of names: a file of the release has all names of at least one group."""
    phases: Mapping[str, Process]
    reported: Names = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Framework:
    """The table of one framework."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: Annotated[Text, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", examples=["my-framework"])]
    """Name of the framework, as `--as` accepts it."""
    title: str = ""
    """Name of the framework in sentences; without any, as `--as` accepts it."""
    recognize: Recognition = Recognition()
    phases: Mapping[str, Process] = field(default_factory=dict[str, Process])
    """The processes that log steps, in most frameworks the trainer alone, by the worker's name."""
    phases_add_up: bool = False
    """Whether the phases are known to add up to the step. If their sum is off, the file has unknown names."""
    rows_are_means: bool = False
    """Whether a row holds means over the steps since the previous row."""
    versions_are_steps: bool = False
    """Whether the weights that a step publishes have its number as their version. If not, publications are counted."""
    placement: Placement = Placement()
    console: Console = Console()
    columns: Mapping[Column, Names] = field(default_factory=dict[str, tuple[str, ...]])
    """Columns of train_steps and the metrics that fill them."""
    reported: Names = ()
    """Prefixes of the framework's other metrics, which are shown unchanged."""
    staleness: Names = ()
    """Names of reported metrics that hold the staleness of a step, counted as the framework counts it: 0 for samples of
    the weights that the step trains."""
    throughput: Names = ()
    """Names of reported metrics that hold tokens per second or total tokens."""
    mean_length: Names = ()
    """Names of reported metrics that hold the mean response length of a step."""
    longest_length: Names = ()
    """Names of reported metrics that hold the longest response length of a step, in the unit of the mean."""
    update_parts: Mapping[UpdatePart, Names] = field(default_factory=dict[str, tuple[str, ...]])
    """Metrics in seconds of the parts of a weight update, in program order. They lie inside the time of the update."""
    settings: Mapping[Setting, Names] = field(default_factory=dict[str, tuple[str, ...]])
    """Settings of the framework's config, as dotted paths or products of them (`a.nodes * a.gpus`): the first counts
    whose factors are all known."""
    actions: Mapping[Action, Text] = field(default_factory=dict[str, str])
    """The framework's names of the settings that advice is about."""
    doctor: Remedies = Remedies()
    earlier: tuple[Earlier, ...] = ()
    docs: Mapping[str, tuple[Mapping[str, str], ...]] = field(default_factory=dict[str, Any])
    """Rows of tables in docs/frameworks.md and docs/importers.md; without a `framework`, a row is of the title."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)

    @property
    def known_by(self) -> tuple[tuple[str, ...], ...]:
        """Groups of names that identify a file; without any in the table: each metric of training."""
        trained = (each for process in self.phases.values() for each in process.order if each.kind is PhaseKind.TRAIN)
        return self.recognize.metrics or tuple((each.metric,) for each in trained if each.metric)

    @property
    def wanted(self) -> frozenset[str]:
        """Names of all metrics that an import needs."""
        names = set[str](self.recognize.step).union(*self.update_parts.values())
        names.update(chain.from_iterable(each.split(" * ") for products in self.columns.values() for each in products))
        for process in self.phases.values():
            names.update(process.names, process.known_by, process.gpu_ratio or (), process.gpu_work or ())
        return frozenset(names)

    def bare(self, name: str) -> str:
        """Return a metric's name without the prefix of a writer."""
        return next((name.removeprefix(each) for each in self.recognize.strip if name.startswith(each)), name)

    def names(self, name: str) -> bool:
        """Return whether the table names a metric."""
        return self.bare(name) in self.wanted

    def knows(self, name: str) -> bool:
        """Return whether a metric is one of the framework's, by its name or its prefix."""
        return self.names(name) or self.bare(name).startswith((*self.reported, *self.recognize.hints))

    def releases(self) -> tuple["Framework", ...]:
        """Return the table as it is now, and as it is for earlier releases."""
        return (self, *(self._at(each) for each in self.earlier))

    def _at(self, release: Earlier) -> "Framework":
        return replace(
            self,
            recognize=replace(self.recognize, metrics=release.metrics),
            phases=release.phases,
            reported=release.reported or self.reported,
            phases_add_up=False,
            earlier=(),
        )


@cache
def _model() -> TypeAdapter[Framework]:
    return TypeAdapter(Framework)


def read_table(path: Path) -> Framework:
    """Read a table. Raises ImportFileError that names the file, the key, and what to do."""
    return read_source(path, TABLE_FILE).validated(_model())
