"""Blocks of a report: builders turn facts into blocks, and each format renders every kind of block once.

Texts may have code between backticks. Everything else that a format needs, such as escapes, is the renderer's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Literal, NamedTuple

from rlscope import format as fmt

Kind = Literal["work", "wait", "weights", "housekeeping", "unknown"]
"""Kind of time that a GPU spends in a state."""
_STATES_NAMED: Final = 4
_WORTH_NAMING_RATIO: Final = 0.02


class Block:
    """One part of a report. Blocks that hold others have them in `blocks`."""

    __slots__ = ()


def flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """Return the blocks, each followed by those that it holds, at any depth."""
    for block in blocks:
        yield block
        yield from flat(getattr(block, "blocks", ()))


@dataclass(frozen=True, slots=True)
class Nothing(Block):
    """All that a section has if there is nothing to show: the reason. The section is then left out."""

    reason: str


@dataclass(frozen=True, slots=True)
class Part(Block):
    """A part with a title."""

    title: str
    blocks: Sequence[Block]
    style: Literal["framed", "alarm", "warning", ""] = ""
    """One with a style stands out on a terminal: the answer of a document, or what is wrong with its data."""


@dataclass(frozen=True, slots=True)
class Answer(Block):
    """The answer of a document in one sentence, with warnings about it, and the reasons."""

    label: str
    headline: str
    reasons: Sequence["Fact"]
    alarm: str = ""
    """A problem that makes the run worthless; empty if there is none."""
    warnings: Sequence[str] = ()
    name: Literal["Verdict", "Result"] = "Result"


@dataclass(frozen=True, slots=True)
class Paragraph(Block):
    """A few sentences."""

    text: str
    style: Literal["headline", "lead", "note", "empty", ""] = ""
    more: str = ""
    """Anchor of the section of the page that says more; empty if none does."""


@dataclass(frozen=True, slots=True)
class Bullets(Block):
    """Lines of a list."""

    lines: Sequence[str]
    mark: str = "!"
    """The mark of a line on a terminal."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that answers need."""

    name: str
    """Name of the data."""
    status: Literal["there", "in part", "missing"]
    """Whether the data is present."""
    found: str
    """Description of the data that was found."""
    adds: str = ""
    """Questions that it would answer; empty if nothing is missing."""
    how: str = ""
    """The line of code, the flag or the file that adds it; empty if nothing is missing."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines below what was found: what the data would add, and how to get it."""
        return (f"would add: {self.adds}", f"to get it: {self.how}") if self.how else ()


@dataclass(frozen=True, slots=True)
class Checks(Block):
    """A list of present and missing data."""

    checks: Sequence[Check]


class Fact(NamedTuple):
    """A quantity: its name, its value, and a note on it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts(Block):
    """Quantities beside each other."""

    facts: Sequence[Fact]


@dataclass(frozen=True, slots=True)
class Table(Block):
    """Rows of text with a heading per column; the first cell of a row names it."""

    title: str
    columns: Sequence[str]
    """Empty for a table of names and values, which shows its title."""
    rows: Sequence[Sequence[str]]
    style: Literal["stacks", "compared", "settings", ""] = ""
    """Layout on a narrow screen: rows as paragraphs, or as a grid; settings are long texts."""
    numbers: frozenset[int] = frozenset()
    """Places of the columns of numbers, which lose their intervals on a narrow terminal."""
    wide: frozenset[int] = frozenset()
    """Places of the columns that only a wide terminal has."""
    faint: frozenset[int] = frozenset()
    """Places of the rows that matter less."""
    groups: Sequence[str] = ()
    """Group of each row: its name stands above its first row, and rows are numbered. Empty for a table without them."""

    @property
    def grouped(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Each row after the group that begins with it and its number, as text; both empty without groups."""
        above = ""
        for number, (row, group) in enumerate(zip_longest(self.rows, self.groups, fillvalue=""), 1):
            yield "" if group == above else group, f"{number}." if group else "", row
            above = group


class StateStyle(NamedTuple):
    """Label, colors and meaning of one state."""

    name: str
    label: str
    kind: Kind
    light: str
    """Color on a light page."""
    dark: str
    """Color on a dark page."""
    meaning: str
    is_known: bool = True
    """Whether this version knows the state."""

    @property
    def slug(self) -> str:
        """The name in CSS variables; unknown states share one."""
        return self.name.replace("_", "-") if self.is_known else "unattributed"


class Term(NamedTuple):
    """A term with its meaning, and the color of a state."""

    name: str
    meaning: str
    state: StateStyle | None = None


@dataclass(frozen=True, slots=True)
class Terms(Block):
    """Terms with their meanings."""

    terms: Sequence[Term]


@dataclass(frozen=True, slots=True)
class Legend(Block):
    """States with their colors, above charts that share them."""

    title: str
    states: Sequence[StateStyle]


@dataclass(frozen=True, slots=True)
class Callout(Block):
    """A finding: how severe it is, what it is and costs, and what to try."""

    severity: str
    title: str
    anchor: str = ""
    cost: str = ""
    when: str = ""
    """The period; empty if it is unknown, as the cost may be."""
    text: str = ""
    remedy: str = ""
    """The advice. A live alert has neither text nor remedy."""


@dataclass(frozen=True, slots=True)
class RolePart:
    """One state of a role, with its share of the role's GPU time."""

    state: StateStyle
    label: str
    share_ratio: float

    @property
    def share(self) -> str:
        """The share in words."""
        return fmt.percent(self.share_ratio)


@dataclass(frozen=True, slots=True)
class LedgerRow(RolePart):
    """One state of a role over the whole run."""

    steady: str
    """Share of the role's GPU time in steady state; empty if it is unknown."""
    gpu_time: str
    gpu_idle: str = ""
    part_of: Literal["row above", "rows above", ""] = ""
    """The row, or the rows, above that include this one; empty for a state of its own."""


class LedgerRole(NamedTuple):
    """One role with its states."""

    role: str
    gpu_time: str
    rows: list[LedgerRow]


@dataclass(frozen=True, slots=True)
class Ledger(Block):
    """The states of each role as bars and numbers."""

    roles: Sequence[LedgerRole]

    @property
    def has_steady(self) -> bool:
        """Whether the shares of the steady state are known."""
        return any(row.steady for role in self.roles for row in role.rows)

    @property
    def has_gpu_idle(self) -> bool:
        """Whether the GPUs' own idle time is known."""
        return any(row.gpu_idle for role in self.roles for row in role.rows)


class RoleBar(NamedTuple):
    """Where the GPU time of a role went."""

    role: str
    spent: str
    """The GPU time, with its price if the run has one."""
    parts: list[RolePart]
    """All states, work first; their shares add up to 1."""

    @property
    def named(self) -> list[RolePart]:
        """The largest few, which are labeled."""
        largest = sorted(self.parts, key=lambda part: -part.share_ratio)[:_STATES_NAMED]
        return [part for part in self.parts if part in largest and part.share_ratio >= _WORTH_NAMING_RATIO]

    @property
    def named_words(self) -> str:
        """The largest few with their shares."""
        return ", ".join(f"{part.label} {part.share}" for part in self.named)


@dataclass(frozen=True, slots=True)
class Roles(Block):
    """Where the GPU time of each role went, as a bar of its states."""

    roles: Sequence[RoleBar]


class Bar(NamedTuple):
    """A quantity as a bar: the part of a line that it covers, as ratios of the longest one."""

    name: str
    value: str
    to_ratio: float
    from_ratio: float = 0.0
    kind: Kind | Literal["over"] = "work"
    """Kind of time, or what lies over a limit."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bars(Block):
    """Quantities as bars below each other."""

    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Asked(Block):
    """Names of the queries behind a table."""

    queries: Sequence[str]


@dataclass(frozen=True, slots=True)
class Charts(Block):
    """Charts beside each other."""

    blocks: Sequence[Block]
    is_wide_first: bool = False
    """The first chart is over time and takes two thirds of the width."""


@dataclass(frozen=True, slots=True)
class Fold(Block):
    """Blocks that show when the reader opens them."""

    anchor: str
    title: str
    blocks: Sequence[Block]


class View(NamedTuple):
    """One of the blocks of a switch."""

    name: str
    label: str
    block: Block
    stretch_s: tuple[float, float] | None = None
    """The zoom that it sets in all charts, in seconds since the run started; None leaves or resets the zoom."""


@dataclass(frozen=True, slots=True)
class Switch(Block):
    """Blocks that the page shows one at a time, the first one first. Other formats show all of them."""

    name: str
    title: str
    views: Sequence[View]

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks of all views."""
        return [view.block for view in self.views]


class Link(NamedTuple):
    """A name that leads to its place on the page."""

    anchor: str
    name: str
    note: str


@dataclass(frozen=True, slots=True)
class Links(Block):
    """Names in a line, with links where the format has them."""

    title: str
    links: Sequence[Link]

    @property
    def text(self) -> str:
        """The names with their notes."""
        return " · ".join(" ".join(filter(None, (link.name, link.note))) for link in self.links)


class Option(NamedTuple):
    """One value of a control of the panel."""

    value: str
    """Part of the keys of its points; empty for the current value of a setting."""
    label: str
    mark: str = ""
    """current, recommended or to try; empty for the rest."""


class Control(NamedTuple):
    """A setting that the panel changes."""

    name: str
    title: str
    options: Sequence[Option]


class Curve(NamedTuple):
    """Throughput against trainer GPUs, in the pixels of its SVG."""

    band: str
    """Corners of the polygon of the 90% interval."""
    line: str
    """Corners of the line of the medians."""
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    marks: Sequence[tuple[float, float, str]]
    """Center and name of each marked layout."""


class Offer(NamedTuple):
    """Everything that the panel shows."""

    notes: Sequence[str]
    controls: Sequence[Control]
    names: Sequence[str]
    """Names of the figures of a point."""
    current: Sequence[str]
    """The figures of the current layout."""
    curve: Curve | None
    """None if there is one split."""
    table: Table
    """The splits, for print and for viewers without scripts."""
    points: str
    """JSON of every point by its key."""


@dataclass(frozen=True, slots=True)
class Panel(Block):
    """Controls that show the what-if of other settings, folded."""

    anchor: str
    title: str
    solve: Callable[[], Offer | None]
    """Solves the what-ifs, which takes a second, when the page is written; None if there is no alternative."""
