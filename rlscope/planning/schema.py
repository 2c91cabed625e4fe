"""A section of a TOML file as a dataclass: its keys, types and ranges checked, and every complaint with its line.

What a key may be is its annotation: a type, and a `Range` where it has one. Not covered: what keys mean together, which
`plan_ahead.py` checks, and TOML itself, which tomllib reads.

A plan.toml as dataclasses: what a run is to be, before there is one. Units are in the names of the keys.

Every key, its unit and what is taken where it is missing stands in `plan_example.toml`, which `rlscope plan --example`
prints. Not covered: what follows from the figures, which `plan_ahead.py` works out.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from rlscope.errors import RlscopeError

Section = TypeVar("Section")

_EXAMPLE: Final = "`rlscope plan --example` prints a plan with every key."
_GUESS_KEYS: Final = frozenset({"median", "log_sd"})


@dataclass(frozen=True, slots=True)
class Guess:
    """A number that is not known exactly: its median, and the standard deviation of its logarithm."""

    median: float
    log_sd: float | None = None
    """None: as the model usually takes it."""


@dataclass(frozen=True, slots=True)
class Range:
    """Ends of what a number may be; least and most are allowed themselves, above is not."""

    least: float | None = None
    most: float | None = None
    above: float | None = None

    def holds(self, value: float) -> bool:
        """Whether the value is inside."""
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return low and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        ends = {"at least": self.least, "above": self.above, "at most": self.most}
        return " and ".join(f"{word} {end:,.10g}" for word, end in ends.items() if end is not None)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a key may be."""

    type: object
    choices: tuple[str, ...]
    range: Range | None

    @classmethod
    def of(cls, hint: object) -> "_Kind":
        """From an annotation: a type or None, or a Literal, with or without a range."""
        metadata = getattr(hint, "__metadata__", ())
        bare = get_args(hint)[0] if metadata else hint
        if get_origin(bare) is Literal:
            return cls(str, get_args(bare), None)
        kinds = [kind for kind in get_args(bare) if kind is not type(None)] if get_origin(bare) is UnionType else [bare]
        return cls(kinds[0], (), next((each for each in metadata if isinstance(each, Range)), None))

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(repr, self.choices))
        return " ".join([_WORDS.get(self.type, "a table of numbers"), *([str(self.range)] if self.range else [])])


@dataclass(frozen=True, slots=True)
class PlanText:
    """A plan as it was written, to say where something stands in it."""

    path: Path
    text: str

    def error(
        self, section: str, name: str | None, *, found: str, expected: str, next_step: str = _EXAMPLE
    ) -> RlscopeError:
        """An error that names file, line and key."""
        line = self._line_of(section, name)
        where = f"{self.path}" if line is None else f"{self.path}, line {line}"
        thing = f"[{section}]" if name is None else f"[{section}] {name}"
        return RlscopeError.of(f"{where}, {thing}", found=found, expected=expected, next_step=next_step)

    def _line_of(self, section: str, name: str | None) -> int | None:
        """The line of a key, or of its section where it is not written; None where neither is."""
        header, at_section, current = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]"), None, ""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if (found := header.match(line)) is not None:
                current = found.group(1).strip("\"'")
                at_section = number if current == section and at_section is None else at_section
            elif name is not None and _names(line, name if current == section else f"{section}.{name}", current):
                return number
            elif current == "" and re.match(rf"\s*{re.escape(section)}\s*=", line):
                at_section = number
        return at_section


def read_section(kind: type[Section], given: Mapping[str, object], text: PlanText, section: str) -> Section:
    """The section as its dataclass. Raises RlscopeError for a key that is unknown, missing, or not what it may be."""
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # every section is a dataclass
    for name in given:
        if name not in known:
            raise text.error(section, name, found=f"the key {name!r}", expected=_near(name, tuple(known)))
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, object] = {}
    for name, each in known.items():
        may_be = _Kind.of(hints[name])
        if name in given:
            values[name] = _value(may_be, given[name], text, section, name)
        elif each.default is MISSING:
            raise text.error(section, name, found="no such key", expected=str(may_be))
    return kind(**values)


def near_misses(name: str, known: tuple[str, ...]) -> str | None:
    """What was probably meant, as a question; None where nothing is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else None


def _near(name: str, known: tuple[str, ...]) -> str:
    meant = near_misses(name, known)
    listed = "one of " + ", ".join(known)
    return listed if meant is None else f"{listed} ({meant})"


def _names(line: str, name: str, current: str) -> bool:
    """Whether a line assigns to the key, by itself or inside its section written as one line."""
    section, _, last = name.rpartition(".")
    bare = rf"\s*[\"']?{re.escape(name)}[\"']?\s*="
    inline = rf"\s*{re.escape(section)}\s*=\s*\{{.*\b{re.escape(last)}\s*="
    return bool(re.match(bare, line) or (section and current == "" and re.match(inline, line)))


def _value(kind: _Kind, value: object, text: PlanText, section: str, name: str) -> object:
    try:
        read = _read(kind, value)
        if kind.range is not None and not all(map(kind.range.holds, _numbers(read))):
            raise ValueError
    except ValueError:
        shown = repr(value)
        found = shown if len(shown) < 60 else f"{type(value).__name__} of {len(shown)} characters"
        raise text.error(section, name, found=found, expected=str(kind)) from None
    return read


def _read(kind: _Kind, value: object) -> object:
    """The value as a key of this kind holds it; ValueError where it is of another."""
    if kind.type is Guess:
        return _guess(value)
    if kind.type is float:
        return _number(value)
    if kind.type is int:
        number = _number(value)
        if number.is_integer():
            return int(number)
    elif kind.type is bool or kind.type is str:
        if isinstance(value, kind.type) and (not kind.choices or value in kind.choices):
            return value
    elif isinstance(value, dict):
        return {str(name): _number(each) for name, each in value.items()}
    raise ValueError


def _numbers(read: object) -> tuple[float, ...]:
    if isinstance(read, Guess):
        return (read.median,)
    if isinstance(read, dict):
        return tuple(read.values())
    return (read,) if isinstance(read, int | float) else ()


def _guess(value: object) -> Guess:
    if not isinstance(value, dict):
        return Guess(_number(value))
    if not value or not set(value) <= _GUESS_KEYS or "median" not in value:
        raise ValueError
    log_sd = value.get("log_sd")
    spread = None if log_sd is None else _number(log_sd)
    if spread is not None and not 0.0 <= spread <= 3.0:
        raise ValueError
    return Guess(_number(value["median"]), spread)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


_WORDS: Final[Mapping[object, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Guess: "a number, or { median = NUMBER, log_sd = 0 to 3 }, the number",
}


EXAMPLE: Final = Path(__file__).with_name("example.toml")
"""A complete plan, every key explained; it plans as it is."""

Keeping = Literal["by_layout", "admission", "publication_waits", "drop"]
"""How a staleness cap is kept: by choosing a layout that keeps it, by holding samples back, by holding publications
back, or by dropping what is too old."""
_ONE: Final = Range(least=1)
_NONE: Final = Range(least=0)
_SOME: Final = Range(above=0)
_SHARE: Final = Range(above=0, most=1)


@dataclass(frozen=True, slots=True)
class Gpus:
    """What there is to be split."""

    total: Annotated[int, Range(least=1, most=65_536)]
    device: str | None = None
    peak_tflops: Annotated[float | None, _SOME] = None
    bandwidth_tb_per_s: Annotated[float | None, _SOME] = None
    memory_gb: Annotated[float | None, _SOME] = None
    gpus_per_engine: Annotated[int, _ONE] = 1
    gpus_per_trainer_replica: Annotated[int, _ONE] = 1
    gpus_per_node: Annotated[int, _ONE] = 1


@dataclass(frozen=True, slots=True)
class Model:
    """What is sampled from and trained."""

    config_json: str | None = None
    parameters: Annotated[float | None, _SOME] = None
    active_parameters: Annotated[float | None, _SOME] = None
    layers: Annotated[int | None, _ONE] = None
    attention_heads: Annotated[int | None, _ONE] = None
    kv_heads: Annotated[int | None, _ONE] = None
    head_dim: Annotated[int | None, _ONE] = None
    experts: Annotated[int | None, Range(least=2)] = None
    experts_per_token: Annotated[int | None, _ONE] = None
    kv_latent_dim: Annotated[int | None, _ONE] = None
    bytes_per_weight: Annotated[float, _SOME] = 2.0
    bytes_per_kv: Annotated[float, _SOME] = 2.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompts and responses."""

    prompt_tokens: Annotated[float | None, _NONE] = None
    from_run: str | None = None
    mean_tokens: Annotated[Guess | None, _SOME] = None
    cv_ratio: Annotated[float | None, Range(above=0, most=10)] = None
    percentiles: Annotated[dict[str, float] | None, _SOME] = None
    cap_tokens: Annotated[int | None, Range(least=1, most=10_000_000)] = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step trains on."""

    samples_per_step: Annotated[int, Range(least=1, most=100_000)]
    group_size: Annotated[int, _ONE] = 1
    kept_ratio: Annotated[float, _SHARE] = 1.0
    steps: Annotated[int | None, _ONE] = None


@dataclass(frozen=True, slots=True)
class Training:
    """How fast the trainers train."""

    mfu_ratio: Annotated[Guess | None, _SHARE] = None
    tokens_per_gpu_s: Annotated[Guess | None, _SOME] = None
    rate_at_gpus: Annotated[int | None, _ONE] = None
    count_prompts: bool = True
    recompute_activations: bool = False
    extra_forward_passes: Annotated[int, Range(least=0, most=10)] = 0
    step_overhead_s: Annotated[float, _NONE] = 0.0
    scaling_exponent: Annotated[float | None, _SHARE] = None
    scaling_exponent_sd: Annotated[float | None, Range(least=0, most=1)] = None
    state_bytes_per_parameter: Annotated[float | None, _NONE] = None


@dataclass(frozen=True, slots=True)
class Weights:
    """How new weights reach the engines."""

    update_s: Annotated[Guess | None, _NONE] = None
    bandwidth_gb_per_s: Annotated[Guess | None, _SOME] = None
    pauses_engines: bool = True
    blocks_trainer: bool = False
    kv_kept: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What must not be passed."""

    max_staleness: Annotated[int | None, _NONE] = None
    staleness_kept: Keeping = "by_layout"
    max_running: Annotated[int, _ONE] = 512
    queue_capacity_samples: Annotated[int | None, _ONE] = None
    max_in_flight_samples: Annotated[int | None, _ONE] = None
    kv_capacity_tokens: Annotated[float | None, _SOME] = None


@dataclass(frozen=True, slots=True)
class Environment:
    """Tools and rewards."""

    wait_s: Annotated[float, _NONE] = 0.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the device's peaks that are reached."""

    weight_bandwidth_ratio: Annotated[Guess | None, _SHARE] = None
    compute_ratio: Annotated[Guess | None, _SHARE] = None
    kv_bandwidth_ratio: Annotated[Guess | None, _SHARE] = None
    prefill_ratio: Annotated[Guess | None, _SHARE] = None
    sharpness: Annotated[Guess | None, _ONE] = None
    pass_overhead_s: Annotated[float | None, _NONE] = None
    memory_ratio: Annotated[float, _SHARE] = 0.9


@dataclass(frozen=True, slots=True)
class Price:
    """What a GPU costs."""

    gpu_hour: Annotated[float | None, _SOME] = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Present:
    """The layout that is in use already."""

    trainer_gpus: Annotated[int, _ONE]
    sampler_gpus: Annotated[int, _ONE]
    max_running: Annotated[int, _ONE]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """All sections of a plan; None: not written, and nothing to be taken instead."""

    text: PlanText
    gpus: Gpus
    model: Model
    lengths: Lengths
    batch: Batch
    training: Training
    weights: Weights
    limits: Limits
    environment: Environment
    efficiency: Efficiency
    price: Price
    present: Present | None


_SECTIONS: Final[Mapping[str, type[Any]]] = {
    "gpus": Gpus,
    "model": Model,
    "lengths": Lengths,
    "batch": Batch,
    "training": Training,
    "weights": Weights,
    "limits": Limits,
    "environment": Environment,
    "efficiency": Efficiency,
    "price": Price,
}


def read_plan(path: Path) -> PlanFile:
    """Read a plan and check its keys. Raises RlscopeError that names file, line and key."""
    text, given = _parsed(path)
    known = (*_SECTIONS, "present")
    for name, value in given.items():
        if name not in known:
            meant = near_misses(name, known)
            expected = f"one of the sections {', '.join(known)}" + ("" if meant is None else f" ({meant})")
            raise text.error(name, None, found=f"the entry {name!r}", expected=expected)
        if not isinstance(value, dict):
            raise text.error(name, None, found=repr(value), expected=f"a section, [{name}]")
    sections: dict[str, Any] = {
        name: read_section(kind, given.get(name, {}), text, name) for name, kind in _SECTIONS.items()
    }
    present = read_section(Present, given["present"], text, "present") if "present" in given else None
    return PlanFile(text=text, present=present, **sections)


def _parsed(path: Path) -> tuple[PlanText, Mapping[str, Any]]:
    expected, step = "a plan in TOML", "`rlscope plan --example > plan.toml` writes one to start from."
    try:
        text = path.read_text(encoding="utf-8")
        return PlanText(path, text), tomllib.loads(text)
    except OSError as error:
        raise RlscopeError.of(path, found=error.strerror or str(error), expected=expected, next_step=step) from error
    except UnicodeDecodeError as error:
        raise RlscopeError.of(path, found="text that is no UTF-8", expected=expected, next_step=step) from error
    except tomllib.TOMLDecodeError as error:
        raise RlscopeError.of(path, found=str(error), expected=expected, next_step=step) from error
