"""A console that prints a block of durations without times after each step, as NeMo-RL's does.

The lines of a block become a row of the framework's metrics, which is placed as a row of any other file. If other lines
between the blocks have timestamps, a step starts at the first timestamp inside its block, which keeps the gaps between
steps visible. Otherwise the steps are laid end to end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from rlscope.errors import ImportFileError
from rlscope.frameworks.table import NO_LINE, Framework, PhaseKind, PhaseMetric
from rlscope.importers.console import PrintedConfig
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.layout import longest_pause_ns
from rlscope.importers.lines import LogFile, prints
from rlscope.importers.log_clock import LogClock, open_clock
from rlscope.importers.quantities import MOST_STEPS, RefusedNumberError, amount, seconds, to_ns, whole
from rlscope.importers.rows import MetricRow, Tally
from rlscope.importers.step_rows import fill
from rlscope.importers.steps import step_log
from rlscope.importers.target import ImportTarget
from rlscope.trace.imported import Certainty

_TOTAL: Final = "total"
"""The duration of a step among its numbers."""
_UNLISTED: Final = "unlisted"
"""Duration of the phases that the table lacks."""
_BETWEEN: Final = "between"
"""Time between a step and the one before it."""
_WRITES: Final = "between steps, the trainer writes logs and files"


class _Blocks:
    """A framework's console, and the table of the rows that its blocks become."""

    def __init__(self, framework: Framework) -> None:
        self.title, self.console = framework.title, framework.console
        process = framework.phases["trainer"]
        self.step = process.step[0]
        self.prefix = self.step.removesuffix(self.step.rpartition("/")[2])
        """Beginning of a metric's name, which the console leaves out."""
        others = PhaseMetric(PhaseKind.OTHER, _BETWEEN, where="before"), PhaseMetric(PhaseKind.OTHER, _UNLISTED)
        process = replace(process, order=(*process.order, *others), gpu_ratio=self.console.gpu_ratio)
        trainer = self.console.workers.get("trainer", "trainer")
        self.table = replace(framework, phases={trainer: process}, columns=self.console.columns)

    def take(self, values: dict[str, float], text: str) -> None:
        """Add the phase or the number of a line to the values of its step. Raises RefusedNumberError."""
        if phase := self.console.phase.search(text):
            name = phase["name"]
            if self.prefix + name in self.table.wanted:
                values[self.prefix + name] = seconds(phase["s"])
            elif not ("/" in name or name in self.console.nested):
                values[_UNLISTED] = values.get(_UNLISTED, 0.0) + seconds(phase["s"])
            return
        values |= {
            name: amount(found[1]) for name, pattern in self.console.numbers.items() if (found := pattern.search(text))
        }


@dataclass(slots=True)
class _Step:
    """One step as printed on the console."""

    step: int
    stamped_ns: int | None = None
    """Time of the first timestamped line inside the block."""
    values: dict[str, float] = field(default_factory=dict[str, float])
    """Durations and numbers by metric; without a total if the block is incomplete."""


def prints_blocks(framework: Framework) -> bool:
    """Return whether a framework's table describes such blocks, and the step and phases in them."""
    trainer = framework.phases.get("trainer")
    return framework.console.total is not NO_LINE and trainer is not None and bool(trainer.step)


def block_console(framework: Framework) -> Importer:
    """Return the importer of a framework's console."""
    blocks = _Blocks(framework)
    kind = f"console of {framework.title}"
    return Importer(framework.name, kind, partial(_recognize, blocks), partial(_read, blocks), is_console=True)


def _recognize(blocks: _Blocks, source: ImportSource) -> bool:
    console = blocks.console
    return prints(console.total, source) or (
        prints(console.heading, source) and any(prints(pattern, source) for pattern in console.numbers.values())
    )


def _read(blocks: _Blocks, source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Lay out the steps of a console. Raises ImportFileError if no step has durations."""
    clock = open_clock(source.path, blocks.console.stamp, target)
    log = LogFile(source.path, Tally(progress))
    steps = [step for step in _steps(blocks, log, clock) if step.values.get(_TOTAL)]
    rows = list(_rows(blocks, steps))
    found = step_log(iter(rows), blocks.table, log.tally)
    if found is None:
        raise ImportFileError.of(
            source.path,
            found=f"{log.tally.lines:,} lines, none with {blocks.console.lines}",
            expected=f"the console log of a {blocks.title} run with at least one finished step",
            next_step="Pass the driver's log, or name another framework with --as.",
        )
    fill(replace(found, sampler_id=blocks.console.workers.get("sampler", "sampler")), target)
    if between_s := sum(row.values.get(_BETWEEN, 0.0) for row in rows):
        target.say_origin("activities", Certainty.INFERRED, _WRITES)
        target.note(
            f"{between_s:,.0f} s lie between steps, where {blocks.title} measures nothing (it writes logs and files"
            " there): other recorded activity."
        )
    if not any(step.values.keys() & set(blocks.console.gpu_ratio or ()) for step in steps):
        target.note("The log has no token counts per step, so throughput is unknown.")
    target.add_file("console", log.tally.source_file(source.path))


def _steps(blocks: _Blocks, log: LogFile, clock: LogClock | None) -> Iterator[_Step]:
    """Yield the blocks in file order, including incomplete ones. The config is printed before the first.

    Some blocks have no heading: those of NeMo-RL's single controller, or the first one of a log that is cut off. Such a
    block follows a complete one and begins with its total or with a number that the complete one has.

    Steps of a console that announces epochs are counted from the beginning of their epoch.
    """
    step, has_begun, has_heading = _Step(1), False, False
    config, steps_before, before = PrintedConfig(log.tally), dict[int, int](), 0
    for line in log:
        try:
            if opening := blocks.console.heading.search(line.text):
                if epoch := opening.groupdict().get("epoch"):
                    before = steps_before.setdefault(whole(epoch, MOST_STEPS), step.step if has_begun else 0)
                    continue
                number = before + whole(opening["step"], MOST_STEPS)
                if has_begun:
                    step.step = step.step if has_heading else max(step.step, number - 1)
                    yield step
                step, has_begun, has_heading = _Step(number), True, True
                continue
            total = blocks.console.total.search(line.text)
            again = (
                pattern.search(line.text) for name, pattern in blocks.console.numbers.items() if name in step.values
            )
            if step.values.get(_TOTAL) and (total or any(again)):
                yield step
                step = _Step(step.step + 1)
            if total:
                step.values[_TOTAL], has_begun = seconds(total["s"]), True
                continue
            blocks.take(step.values, line.text)
            config.read(line)
            is_first = has_begun and step.stamped_ns is None and not line.merged
            if is_first and clock and (found := blocks.console.stamp.search(line.text)):
                step.stamped_ns = clock.time_ns(found["ts"])
        except RefusedNumberError:
            log.tally.bad_lines += 1
    if has_begun:
        yield step


def _rows(blocks: _Blocks, steps: list[_Step]) -> Iterator[MetricRow]:
    """Yield the rows of the steps. The time between two is nobody's if the run was started again."""
    spans = _spans(steps)
    longest_ns = longest_pause_ns([end_ns for _, end_ns in spans])
    for index, step in enumerate(steps):
        values = step.values | {blocks.step: step.values[_TOTAL]}
        if spans and index and step.step > steps[index - 1].step:
            between_ns = spans[index][0] - spans[index - 1][1]
            values |= {_BETWEEN: between_ns / 1e9} if 0 < between_ns <= longest_ns else {}
        yield MetricRow(spans[index][1] if spans else None, step.step, values)


def _spans(steps: list[_Step]) -> list[tuple[int, int]]:
    """Return start and end of each step in ns: it starts at its first timestamp, but not before the previous one ended.

    Without any timestamp, there are none.
    """
    end_ns = next((step.stamped_ns for step in steps if step.stamped_ns is not None), None)
    if end_ns is None:
        return []
    spans: list[tuple[int, int]] = []
    for step in steps:
        start_ns = max(end_ns, step.stamped_ns or 0)
        end_ns = start_ns + to_ns(step.values[_TOTAL])
        spans.append((start_ns, end_ns))
    return spans
