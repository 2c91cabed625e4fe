"""Return types of the Python interface: classes around the frozen dataclasses that hold the results.

Each class has a `repr` of one line and writes itself as a document. Slow modules are imported when they are needed.
"""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from rlscope.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

    from rlscope.alerts.offline import RuleOutcome, RuleReport
    from rlscope.analysis.result import Alert, Finding, Severity
    from rlscope.comparison.facts import ComparedRun
    from rlscope.comparison.history import RunEntry
    from rlscope.comparison.runs import Pair, RunComparison
    from rlscope.model.estimate import Estimate
    from rlscope.model.forecast.layouts import Forecast
    from rlscope.model.forecast.plan import PlanResult
    from rlscope.model.forecast.result import ModelResult
    from rlscope.model.forecast.what_if import Obstacle, WhatIf
    from rlscope.planning.schema import PlanFile
    from rlscope.reports.page.comparison import ComparisonCharts
    from rlscope.reports.text.doctor import Check

ListForm = Literal["text", "csv", "json"]
CheckForm = Literal["text", "json", "markdown", "junit", "github"]
Word = TypeVar("Word", bound=str)
_REPR_CHARACTERS: Final = 160


class WhatIfAnswer:
    """Prediction of a run with changed settings, next to the current run; returned by `what_if`."""

    def __init__(self, run_id: str, model: "ModelResult", answer: "WhatIf") -> None:
        self._run_id = run_id
        self.model: ModelResult = model
        """The model of the current run."""
        self.answer: WhatIf = answer
        """The complete result, as one frozen dataclass."""

    @property
    def now(self) -> "Forecast":
        """The model's forecast of the current run."""
        return self.answer.now

    @property
    def predicted(self) -> "Forecast":
        """The model's forecast of the changed run. It has only a layout if the changed run cannot run."""
        return self.answer.predicted

    @property
    def gain_ratio(self) -> "Estimate | None":
        """Relative change of trained tokens per second (0.1 is 10% more), with its interval. None if it cannot run."""
        return self.answer.gain_ratio

    @property
    def obstacle(self) -> "Obstacle | None":
        """Reason that the changed run cannot run. None if it can."""
        return self.answer.obstacle

    def to_json(self) -> str:
        """Return the answer as JSON, the document of `rlscope what-if --json`."""
        from rlscope.reports.documents.what_if import what_if_document

        return what_if_document(self.model, self.answer).as_json()

    def __repr__(self) -> str:
        from rlscope.reports.text.what_if import headline

        return one_line("WhatIfAnswer", self._run_id, headline(self.answer))


class PlanAnswer:
    """Recommended layout of a planned run, returned by `plan`."""

    def __init__(self, file: "PlanFile", result: "PlanResult") -> None:
        self.file: PlanFile = file
        """The plan as it was read."""
        self.result: PlanResult = result
        """The complete result, as one frozen dataclass."""

    @property
    def best(self) -> "Forecast | None":
        """The recommended layout with its predicted rates (tokens/s). None if no layout can run."""
        return self.result.best

    @property
    def asked(self) -> "Forecast | None":
        """Forecast of the `layout` that `plan` was given, None without one. Its rates are None if it cannot run."""
        return self.result.asked

    def to_json(self) -> str:
        """Return the answer as JSON, the document of `rlscope plan --json`."""
        from rlscope.reports.documents.plan import plan_document

        return plan_document(self.result, self.file).as_json()

    def __repr__(self) -> str:
        from rlscope.reports.text.plan import headline

        return one_line("PlanAnswer", self.file.source.name, headline(self.result))


class CheckReport:
    """Result of alert rules over a whole run, returned by `check`: every firing, and rules without enough data."""

    def __init__(self, result: "RuleReport") -> None:
        self.result: RuleReport = result
        """The complete result, as one frozen dataclass."""

    @property
    def alerts(self) -> "tuple[Alert, ...]":
        """Intervals in which a rule fired, in the order of their start."""
        return self.result.alerts

    @property
    def outcomes(self) -> "tuple[RuleOutcome, ...]":
        """Outcome of each rule, in the order of the rules. An outcome without evaluated_ticks had too little data."""
        return self.result.outcomes

    @property
    def findings(self) -> "tuple[Finding, ...] | None":
        """Problems of the run, the most expensive first. None unless `check` was given fail_on_finding."""
        return self.result.findings

    def failed(self, fail_on: "Severity" = "critical") -> bool:
        """Return whether a rule of this severity or higher fired, or a finding reached `fail_on_finding`.

        Raises:
            ArgumentError: The severity is unknown.
        """
        return self.result.fails(severity_of(fail_on))

    def to_text(self, form: CheckForm = "text", fail_on: "Severity" = "critical") -> str:
        """Return the report as text for a terminal, JSON, Markdown, JUnit XML or GitHub Actions commands.

        Args:
            form: "text", "json", "markdown", "junit" or "github".
            fail_on: Lowest severity that counts as a failure, as in `failed`.

        Raises:
            ArgumentError: The form or the severity is unknown.
        """
        from rlscope.reports.documents import check

        return check.FORMS[one_of("form", form, tuple(check.FORMS))](self.result, severity_of(fail_on))

    def __repr__(self) -> str:
        fired = sum(bool(outcome.alerts) for outcome in self.outcomes)
        return one_line("CheckReport", self.result.run_id, f"{fired} of {len(self.outcomes)} rules fired")


class Comparison:
    """Comparison of runs with a baseline, returned by `compare`: what changed, whether it is significant, and why."""

    def __init__(self, result: "RunComparison") -> None:
        self._charts: ComparisonCharts | None = None
        self.result: RunComparison = result
        """The complete result, as one frozen dataclass."""

    @property
    def baseline(self) -> "ComparedRun":
        """The baseline, run A."""
        return self.result.baseline

    @property
    def pairs(self) -> "tuple[Pair, ...]":
        """The baseline paired with each run: differences with intervals, causes, test of A's prediction, caveats."""
        return self.result.pairs

    @property
    def charts(self) -> "ComparisonCharts":
        """Charts of the report: `charts.states()` returns an Altair chart, `dir(charts)` lists all of them."""
        from rlscope.reports.page.comparison import ComparisonCharts

        self._charts = self._charts or ComparisonCharts(self.result)
        return self._charts

    def to_json(self) -> str:
        """Return the comparison as JSON, the document of `rlscope compare --json`."""
        from rlscope.reports.documents.comparison import compare_document

        return compare_document(self.result).as_json()

    def to_markdown(self) -> str:
        """Return the comparison as Markdown, for a pull request or a chat."""
        from rlscope.reports.documents.comparison import as_markdown

        return as_markdown(self.result)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the report as one self-contained HTML file and return its path.

        Raises:
            OutputError: The file cannot be written.
        """
        from rlscope.reports.page.comparison import render_comparison
        from rlscope.text_out import write_file

        return write_file(Path(path), render_comparison(self.result).encode())

    def to_png(self, path: str | PathLike[str]) -> Path:
        """Write the first pair as a PNG of 2560 x 1440 pixels and return its path.

        Raises:
            OutputError: The file cannot be written.
            RlscopeError: No font is installed.
        """
        from rlscope.reports.page.comparison import comparison_png
        from rlscope.text_out import write_file

        return write_file(Path(path), comparison_png(self.result))

    def __repr__(self) -> str:
        from rlscope.reports.text.comparison import pairs_in_words

        headlines = "; ".join(pair.headline for pair in pairs_in_words(self.result))
        return one_line("Comparison", self.baseline.name, headlines)

    def _repr_html_(self) -> str:
        from rlscope.reports.page.comparison import comparison_card

        return comparison_card(self.result)


class DoctorReport(tuple["Check", ...]):
    """Checks of what a run records and lacks, returned by `doctor`: a tuple of `Check`."""

    def to_json(self, beside: "Iterable[tuple[Path, str, str]]" = ()) -> str:
        """Return the checks as JSON, the document of `rlscope doctor --json`.

        Args:
            beside: Path, kind and flag of other files in the folder.
        """
        from rlscope.document import dump
        from rlscope.reports.documents.doctor import DoctorDocument, OtherFile

        return dump(DoctorDocument(self, tuple(OtherFile(*each) for each in beside)))


class RunList:
    """Runs below a folder, returned by `list_runs` in the requested order."""

    def __init__(self, folder: str, entries: "tuple[RunEntry, ...]") -> None:
        self._folder = folder
        self.entries: tuple[RunEntry, ...] = entries
        """One entry per run. If a run could not be analyzed, `problem` says why."""

    def frame(self) -> "pl.DataFrame":
        """Return the list as a polars frame with one row per run. Column names carry their unit."""
        import polars as pl

        from rlscope.comparison.history import NAMES

        return pl.DataFrame({name: [getattr(each, name) for each in self.entries] for name in NAMES}, strict=False)

    def to_text(self, form: ListForm = "text", columns: int | None = None, kept: str | None = None) -> str:
        """Return the list as text, CSV or JSON.

        Args:
            form: "text", "csv" or "json".
            columns: Maximum width of text, in characters. None does not limit it.
            kept: Column that is not dropped to fit the width.

        Raises:
            ArgumentError: The form is unknown.
        """
        from rlscope.reports.documents.history import FORMS, on_terminal

        if form == "text" and columns is not None:
            return on_terminal(self.entries, columns, kept)
        return FORMS[one_of("form", form, tuple(FORMS))](self.entries)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the list as one self-contained HTML file and return its path.

        Raises:
            OutputError: The file cannot be written.
        """
        from rlscope.reports.page.history import render_list
        from rlscope.text_out import write_file

        return write_file(Path(path), render_list(self.entries, self._folder).encode())

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        from rlscope.format import counted

        return one_line("RunList", self._folder, counted(len(self.entries), "run", "runs"))

    def _repr_html_(self) -> str:
        from rlscope.reports.page.history import list_table

        return list_table(self.entries, self._folder)


def severity_of(name: "Severity", argument: str = "fail_on") -> "Severity":
    """Return the severity with a name. Raises ArgumentError if there is none."""
    from rlscope.analysis.result import SEVERITIES

    return one_of(argument, name, SEVERITIES)


def one_of(name: str, value: Word, choices: tuple[Word, ...]) -> Word:
    """Return the value if it is one of the choices. Raises an ArgumentError that lists the choices otherwise."""
    if value not in choices:
        raise ArgumentError.of(
            name, found=repr(value), expected="one of " + ", ".join(choices), next_step="Use one of them."
        )
    return value


def one_line(kind: str, of: str, summary: str) -> str:
    """Return the `repr` of a result in one line: `Analysis('monday': the trainers limit the run)`."""
    from rlscope.format import printable

    text = printable(summary.rstrip("."))
    text = text if len(text) <= _REPR_CHARACTERS else text[: _REPR_CHARACTERS - 2].rstrip() + " …"
    return f"{kind}({of[:_REPR_CHARACTERS]!r}: {text})"
