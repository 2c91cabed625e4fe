"""The sections of the page below its first screen, in order: each turns the analysis into blocks.

The first ones are open, the rest folds, and one without anything to show is left out.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block
from rlscope.reports.card import ledger_blocks
from rlscope.reports.sections.appendix import (
    alerts_section,
    configuration_section,
    data_quality_section,
    glossary_section,
    reported_section,
)
from rlscope.reports.sections.changes import changes_section
from rlscope.reports.sections.engines import engines_section
from rlscope.reports.sections.findings import findings_section
from rlscope.reports.sections.gap import gap_section
from rlscope.reports.sections.latency import latency_section
from rlscope.reports.sections.layouts import layouts_section
from rlscope.reports.sections.lengths import lengths_section
from rlscope.reports.sections.queue import queue_section
from rlscope.reports.sections.staleness import staleness_section
from rlscope.reports.sections.throughput import throughput_section
from rlscope.reports.sections.training import training_section
from rlscope.reports.sections.workers import workers_section
from rlscope.reports.text.rules import TITLE as ALERTS_TITLE
from rlscope.reports.text.shifts import TITLE as EVENTS_TITLE


class Section(NamedTuple):
    """One section of the page."""

    anchor: str
    """The target of links."""
    title: str
    short: str
    """The title in the navigation."""
    make: Callable[[AnalysisResult], Sequence[Block]]
    folded: str = ""
    """Summary shown while the section is folded; empty if the section is open."""


DATA_QUALITY: Final = "data-quality"
"""Anchor of the section that lists what is not shown."""
SECTIONS: Final = (
    Section("workers", "Worker timelines", "Workers", workers_section),
    Section("changes", EVENTS_TITLE, "Changes", changes_section),
    Section("findings", "Findings, whole run", "Findings", findings_section),
    Section("staleness", "Staleness, whole run", "Staleness", staleness_section),
    Section("engines", "Batch size of the engines", "Engines", engines_section),
    Section("lengths", "Response lengths and token outcomes, whole run", "Lengths", lengths_section),
    Section("queue", "Queue and weight updates", "Queue and updates", queue_section),
    Section("layouts", "Other layouts", "Layouts", layouts_section),
    Section("training", "Reward, loss and staleness by step", "Reward and loss", training_section,
            "reward, loss and other metrics, by step and by GPU-hours"),
    Section("throughput", "Throughput and step time", "Throughput", throughput_section,
            "tokens per second, and the phases of each step"),
    Section("gap", "Upper bound and measured throughput, steady state", "Lost throughput", gap_section,
            "what each cause takes, and how well the model predicts"),
    Section("ledger", "Where the GPU time went", "GPU time", ledger_blocks, "every GPU-second by state"),
    Section("latency", "Forward passes by batch size", "Forward passes", latency_section,
            "measured and fitted time of a pass"),
    Section("alerts", ALERTS_TITLE, "Alerts", alerts_section, "the built-in rules that fired, and when"),
    Section("reported", "Framework metrics", "As reported", reported_section, "scalars as the framework computed them"),
    Section(DATA_QUALITY, "Data quality", "Data quality", data_quality_section,
            "gaps in the data, and what is not shown"),
    Section("configuration", "Run configuration", "Configuration", configuration_section, "settings from run.json"),
    Section("glossary", "Glossary", "Glossary", glossary_section, "terms and colors of this page"),
)  # fmt: skip
"""The sections, in the order of the page."""
