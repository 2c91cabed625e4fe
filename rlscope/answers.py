"""What the functions of the front door answer: classes around the frozen dataclasses that hold the facts.

Each says in one line what it is, and writes itself as a document. What is slow to import is imported when it is needed.
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
    from rlscope.comparison.runs import Compared, Pair
    from rlscope.model.forecast.layouts import Forecast, Spread
    from rlscope.model.forecast.plan import PlanResult
    from rlscope.model.forecast.result import ModelResult
    from rlscope.model.forecast.what_if import Obstacle, WhatIf
    from rlscope.planning.schema import PlanFile
    from rlscope.reports.page.comparison import ComparisonCharts
    from rlscope.reports.text.doctor import Piece

ListForm = Literal["text", "csv", "json"]
CheckForm = Literal["text", "json", "markdown", "junit", "github"]
Word = TypeVar("Word", bound=str)
_REPR_CHARACTERS: Final = 160


class WhatIfAnswer:
    """What a run would do with something changed, beside the run as it is, from `what_if`."""

    def __init__(self, run_id: str, model: "ModelResult", answer: "WhatIf") -> None:
        self._run_id = run_id
        self.model: ModelResult = model
        """The model of the run as it is."""
        self.answer: WhatIf = answer
        """Everything that was computed, as one frozen dataclass."""

    @property
    def now(self) -> "Forecast":
        """The run as it is, by the model."""
        return self.answer.now

    @property
    def predicted(self) -> "Forecast":
        """The run as it would be; only its layout where it cannot run."""
        return self.answer.predicted

    @property
    def gain_ratio(self) -> "Spread | None":
        """Change of trained tokens per second, 0.1 for 10% more, with its interval; None where it cannot run."""
        return self.answer.gain_ratio

    @property
    def obstacle(self) -> "Obstacle | None":
        """Why it cannot run; None where it can."""
        return self.answer.obstacle

    def to_json(self) -> str:
        """The answer as JSON, the document of `rlscope what-if --json`."""
        from rlscope.reports.documents.what_if import what_if_document

        return what_if_document(self.model, self.answer).as_json()

    def __repr__(self) -> str:
        from rlscope.reports.text.what_if import headline

        return one_line("WhatIfAnswer", self._run_id, headline(self.answer))


class PlanAnswer:
    """The layout to start a run with, from `plan`."""

    def __init__(self, file: "PlanFile", result: "PlanResult") -> None:
        self.file: PlanFile = file
        """The plan as it was read."""
        self.result: PlanResult = result
        """Everything that was computed, as one frozen dataclass."""

    @property
    def best(self) -> "Forecast | None":
        """The layout to start with, with its predicted rates (tokens/s); None where no layout can be used."""
        return self.result.best

    @property
    def asked(self) -> "Forecast | None":
        """The layout that was asked about; None without one. Its rates are None where it cannot run."""
        return self.result.asked

    def to_json(self) -> str:
        """The answer as JSON, the document of `rlscope plan --json`."""
        from rlscope.reports.documents.plan import plan_document

        return plan_document(self.result, self.file).as_json()

    def __repr__(self) -> str:
        from rlscope.reports.text.plan import headline

        return one_line("PlanAnswer", self.file.source.name, headline(self.result))


class CheckReport:
    """Alert rules over a whole run, from `check`: every firing, and what could not be judged."""

    def __init__(self, result: "RuleReport") -> None:
        self.result: RuleReport = result
        """Everything that was computed, as one frozen dataclass."""

    @property
    def alerts(self) -> "tuple[Alert, ...]":
        """Every stretch in which a rule fired, by its start."""
        return self.result.alerts

    @property
    def outcomes(self) -> "tuple[RuleOutcome, ...]":
        """What each rule came to, in the order of the rules; one with no judged_ticks had too little data."""
        return self.result.outcomes

    @property
    def findings(self) -> "tuple[Finding, ...] | None":
        """What is wrong with the run, the most expensive first; None unless `check` was given fail_on_finding."""
        return self.result.findings

    def failed(self, fail_on: "Severity" = "critical") -> bool:
        """Whether a rule of that severity or higher fired, or a finding fails. Raises ArgumentError."""
        return self.result.fails(severity_of(fail_on))

    def to_text(self, form: CheckForm = "text", fail_on: "Severity" = "critical") -> str:
        """The report for a terminal, or as JSON, Markdown, JUnit XML, or workflow commands of GitHub Actions.

        fail_on: what `failed` is asked with. Raises ArgumentError for an unknown form or severity.
        """
        from rlscope.reports.documents import check

        return check.FORMS[one_of("form", form, tuple(check.FORMS))](self.result, severity_of(fail_on))

    def __repr__(self) -> str:
        fired = sum(bool(outcome.alerts) for outcome in self.outcomes)
        return one_line("CheckReport", self.result.run_id, f"{fired} of {len(self.outcomes)} rules fired")


class Comparison:
    """Runs beside a baseline, from `compare`: what differs, whether that is more than noise, and what it is from."""

    def __init__(self, result: "Compared") -> None:
        self._charts: ComparisonCharts | None = None
        self.result: Compared = result
        """Everything that was computed, as one frozen dataclass."""

    @property
    def baseline(self) -> "ComparedRun":
        """Run A."""
        return self.result.baseline

    @property
    def pairs(self) -> "tuple[Pair, ...]":
        """Every other run beside it: differences with intervals, causes, the promise, and reasons for care."""
        return self.result.pairs

    @property
    def charts(self) -> "ComparisonCharts":
        """The charts of the page: `charts.states()` is an Altair chart; `dir(charts)` lists them."""
        from rlscope.reports.page.comparison import ComparisonCharts

        self._charts = self._charts or ComparisonCharts(self.result)
        return self._charts

    def to_json(self) -> str:
        """The comparison as JSON, the document of `rlscope compare --json`."""
        from rlscope.reports.documents.comparison import compare_document

        return compare_document(self.result).as_json()

    def to_markdown(self) -> str:
        """The comparison as Markdown, for a pull request or a chat."""
        from rlscope.reports.documents.comparison import as_markdown

        return as_markdown(self.result)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the page, one file that loads nothing, and return its path. Raises OutputError."""
        from rlscope.reports.page.comparison import render_comparison
        from rlscope.text_out import write_file

        return write_file(Path(path), render_comparison(self.result).encode())

    def to_png(self, path: str | PathLike[str]) -> Path:
        """Write the first pair as a picture of 2560 x 1440 pixels and return its path.

        Raises OutputError, and RlscopeError where no font is installed.
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


class Pieces(tuple["Piece", ...]):
    """What is there of a run and what is missing, from `doctor`: a tuple of pieces."""

    def to_json(self, beside: "Iterable[tuple[Path, str, str]]" = ()) -> str:
        """The JSON document of `rlscope doctor --json`; beside: path, kind and flag of other files."""
        from rlscope.reports.documents.data_quality import doctor_document

        return doctor_document(self, beside).as_json()


class RunList:
    """The runs below a folder, from `list_runs`, in the order asked for."""

    def __init__(self, folder: str, entries: "tuple[RunEntry, ...]") -> None:
        self._folder = folder
        self.entries: tuple[RunEntry, ...] = entries
        """One a run; `problem` says why one could not be analysed."""

    def frame(self) -> "pl.DataFrame":
        """The list as a polars frame, a row a run, with units in the names of the columns."""
        import polars as pl

        from rlscope.reports.documents.history import RunEntryJson

        names = RunEntryJson.model_fields
        return pl.DataFrame({name: [getattr(each, name) for each in self.entries] for name in names}, strict=False)

    def to_text(self, form: ListForm = "text", columns: int | None = None, kept: str | None = None) -> str:
        """The list as text, CSV or JSON; text of at most so many columns, of which `kept` is not left out.

        Raises ArgumentError for an unknown form.
        """
        from rlscope.reports.documents.history import FORMS, on_terminal

        if form == "text" and columns is not None:
            return on_terminal(self.entries, columns, kept)
        return FORMS[one_of("form", form, tuple(FORMS))](self.entries)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the list as a page, one file that loads nothing, and return its path. Raises OutputError."""
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
    """A severity by its name. Raises ArgumentError for another name."""
    from rlscope.analysis.result import SEVERITIES

    return one_of(argument, name, SEVERITIES)


def one_of(name: str, value: Word, known: tuple[Word, ...]) -> Word:
    """A word, if it is one of those that are known. Raises ArgumentError that lists them."""
    if value not in known:
        raise ArgumentError.of(name, found=repr(value), expected="one of " + ", ".join(known), next_step="Name one.")
    return value


def one_line(kind: str, of: str, says: str) -> str:
    """A class about itself in one line: `Analysis('monday': the trainers limit the run)`."""
    from rlscope.format import printable

    text = printable(says.rstrip("."))
    text = text if len(text) <= _REPR_CHARACTERS else text[: _REPR_CHARACTERS - 2].rstrip() + " …"
    return f"{kind}({of[:_REPR_CHARACTERS]!r}: {text})"
