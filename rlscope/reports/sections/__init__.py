"""The sections of the page below its first screen, in order: each turns the analysis into blocks.

The first ones are open, the rest folds, and one without anything to show is left out.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Bullets, Nothing
from rlscope.reports.card import NO_GAPS, alerts_table, ledger_blocks
from rlscope.reports.figure import figures_in
from rlscope.reports.sections.engines import engines_section
from rlscope.reports.sections.lengths import lengths_section
from rlscope.reports.sections.lists import GLOSSARY, configuration_section, findings_section
from rlscope.reports.sections.model import gap_blocks, latency_blocks, layouts_blocks, modeled
from rlscope.reports.sections.queue import queue_section
from rlscope.reports.sections.staleness import staleness_section
from rlscope.reports.sections.training import throughput_section, training_section
from rlscope.reports.sections.workers import workers_section
from rlscope.reports.text import findings, rules, shifts, verdict


class Section(NamedTuple):
    """One section of a page, below its first screen."""

    anchor: str
    """The target of links."""
    title: str
    short: str
    """The title in the navigation."""
    blocks: Sequence[Block]
    folded: str = ""
    """Summary shown while the section is folded; empty if the section is open."""

    @property
    def no_data(self) -> str:
        """Reasons why charts are missing, without duplicates."""
        reasons = [drawn.figure.empty for drawn in figures_in(self.blocks) if not drawn.spec]
        return "; ".join(dict.fromkeys(reasons))

    @property
    def left_out(self) -> str:
        """Reason why the section is left out; empty if it has something to show."""
        reasons = [block.reason for block in self.blocks if isinstance(block, Nothing)]
        is_bare = not any(drawn.spec for drawn in figures_in(self.blocks))
        return reasons[0] if reasons else self.no_data if is_bare else ""


DATA_QUALITY: Final = "data-quality"
"""Anchor of the section that lists what is not shown."""


def sections_of(analysis: AnalysisResult) -> list[Section]:
    """Return every section, in the order of the page; one may have nothing to show."""
    events, gaps = analysis.events, verdict.gap_lines(analysis)
    changes = shifts.events_block(events, analysis.run.started_ns) if events else Nothing(shifts.NO_EVENTS)
    alerts = alerts_table(analysis) if analysis.alerts else Nothing(rules.NONE_FIRED)
    return [
        Section("workers", "Worker timelines", "Workers", workers_section(analysis)),
        Section("changes", shifts.TITLE, "Changes", [changes]),
        Section("findings", findings.TITLE, "Findings", findings_section(analysis)),
        Section("staleness", "Staleness, whole run", "Staleness", staleness_section(analysis)),
        Section("engines", "Batch size of the engines", "Engines", engines_section(analysis)),
        Section("lengths", "Response lengths and token outcomes, whole run", "Lengths", lengths_section(analysis)),
        Section("queue", "Queue and weight updates", "Queue and updates", queue_section(analysis)),
        Section("layouts", "Other layouts", "Layouts", modeled(analysis, layouts_blocks)),
        Section("training", "Reward, loss and staleness by step", "Reward and loss", training_section(analysis),
                "reward, loss and other metrics, by step and by GPU-hours"),
        Section("throughput", "Throughput and step time", "Throughput", throughput_section(analysis),
                "tokens per second, and the phases of each step"),
        Section("gap", "Upper bound and measured throughput, steady state", "Lost throughput",
                modeled(analysis, gap_blocks), "what each cause takes, and how well the model predicts"),
        Section("ledger", "Where the GPU time went", "GPU time", ledger_blocks(analysis), "every GPU-second by state"),
        Section("latency", "Forward passes by batch size", "Forward passes", modeled(analysis, latency_blocks),
                "measured and fitted time of a pass"),
        Section("alerts", rules.TITLE, "Alerts", [alerts], "the built-in rules that fired, and when"),
        Section(DATA_QUALITY, "Data quality", "Data quality", [Bullets(gaps) if gaps else Nothing(NO_GAPS)],
                "gaps in the data, and what is not shown"),
        Section("configuration", "Run configuration", "Configuration", configuration_section(analysis),
                "settings from run.json"),
        Section("glossary", "Glossary", "Glossary", [GLOSSARY], "terms and colors of this page"),
    ]  # fmt: skip
