"""Results of the Python interface: the results of an analysis, a model or a comparison, which write themselves.

Each extends the frozen dataclass of its result by the formats that it has, and has a `repr` of one line. The charts and
the report are slow to import and are imported when they are needed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack, get_args

import polars as pl

from rlscope.analysis.result import AnalysisResult
from rlscope.changes import Changes, checked_changes
from rlscope.comparison.history import NAMES, RunEntry
from rlscope.comparison.runs import RunComparison
from rlscope.document import LEFT_OUT, Document, dump, extended, single_values
from rlscope.errors import AnalysisError, check_one_of
from rlscope.format import counted, repr_of
from rlscope.importers.join import RunFolder
from rlscope.model.forecast.change import Change
from rlscope.model.forecast.plan import PlanResult
from rlscope.model.forecast.recommend import Recommendation
from rlscope.model.forecast.result import ModelResult
from rlscope.model.forecast.what_if import WhatIf, what_if
from rlscope.pipeline import with_drawn
from rlscope.planning.schema import PlanFile
from rlscope.reports.answer import InBlocks
from rlscope.reports.blocks import Block
from rlscope.reports.card import card_blocks, first_screen
from rlscope.reports.documents.analysis import analysis_document
from rlscope.reports.documents.comparison import compare_document
from rlscope.reports.documents.plan import plan_document
from rlscope.reports.documents.what_if import what_if_document
from rlscope.reports.markdown import markdown
from rlscope.reports.text.comparison import comparison_blocks, pair_blocks
from rlscope.reports.text.history import list_blocks
from rlscope.reports.text.model import misfit_words
from rlscope.reports.text.plan import headline as plan_headline
from rlscope.reports.text.plan import plan_blocks
from rlscope.reports.text.step_bounds import largest_sentence
from rlscope.reports.text.verdict import headline
from rlscope.reports.text.what_if import headline as what_if_headline
from rlscope.reports.text.what_if import what_if_blocks
from rlscope.run import Run
from rlscope.text_out import write_file
from rlscope.trace.query import Argument

if TYPE_CHECKING:
    from rlscope.exports.trackers import Tracker
    from rlscope.reports.page.html import Charts

Part = Literal["ledger", "staleness", "findings", "actions"]
PAGE_NAME = "report.html"
"""Default file name of the report, in the run's folder."""


class _WithPage:
    """An answer with a page of its own."""

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the page as one self-contained HTML file and return its path.

        Raises:
            OutputError: The file cannot be written.
        """
        return write_file(Path(path), self._page().encode())

    def _page(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Analysis(_WithPage, InBlocks, AnalysisResult):
    """The analysis of one run, returned by `rlscope.analyze`: results, charts and output formats.

    Numbers carry their unit in their name; None means no data. `query`, `sql` and `what_if` answer further questions
    about the same run.
    """

    path: Path
    """Path of the run folder or of the imported file, as the caller gave it."""
    folder: RunFolder
    """Folder of the run."""

    @property
    def page_path(self) -> Path:
        """Default path of the report."""
        return self.folder.beside(PAGE_NAME)

    @property
    def recommendation(self) -> Recommendation | None:
        """The recommended layout with its gain (a ratio) and its probability. None if the run has no model."""
        return self.modeled and self.modeled.recommendation

    @cached_property
    def drawn(self) -> AnalysisResult:
        """The result with all data that the report draws. An analysis with `page=False` queries the rest now."""
        return with_drawn(self.folder.path, self)

    @cached_property
    def charts(self) -> "Charts":
        """Charts of the report: `charts.workers_all()` returns an Altair chart, `dir(charts)` lists all of them."""
        from rlscope.reports.page.html import charts_of

        return charts_of(self.drawn)

    def query(self, name: str, **arguments: Argument) -> pl.DataFrame:
        """Run a built-in query, as `Run.query` does. The run is opened for it and closed again."""
        with Run(self.folder.path) as run:
            return run.query(name, **arguments)

    def sql(self, text: str) -> pl.DataFrame:
        """Run one SELECT, as `Run.sql` does with its default limits. The run is opened for it and closed again."""
        with Run(self.folder.path) as run:
            return run.sql(text)

    def what_if(self, **changes: Unpack[Changes]) -> "WhatIfAnswer":
        """Predict the run with changed settings: `a.what_if(trainer_gpus=4, max_running=64)`.

        Args:
            **changes: New values, by the names and in the units of `Changes`.

        Raises:
            AnalysisError: No model can be fitted to the run, or the model does not reproduce it.
            ImpossibleChangeError: A value is out of range, the GPUs form no layout, or a limit is given twice.
        """
        change = Change(**checked_changes(changes))
        if not isinstance(self.model, ModelResult):
            bound = largest_sentence(self.step_bounds)
            raise AnalysisError.of(
                self.path,
                found=f"no model: {self.model.reason}",
                expected="a run that the model can be fitted to",
                next_step=f"{bound} Run `rlscope analyze` for the results that need no model, or `rlscope plan`, which "
                "needs only the LLM's size and the lengths of responses.".lstrip(),
            )
        if not self.model.replay.explains:
            raise AnalysisError.of(
                self.path,
                found=f"a model that does not reproduce the run: {misfit_words(self.model.replay)}",
                expected="a replayed rate within 10% of the measured one",
                next_step="Run `rlscope analyze`: its report lists the differences.",
            )
        return extended(WhatIfAnswer, what_if(self.model, change), run_id=self.run.run_id, model=self.model)

    def push(
        self,
        tracker: "Tracker",
        *,
        project: str | None = None,
        into: str | None = None,
        folder: str | PathLike[str] | None = None,
    ) -> str:
        """Write the results to an experiment tracker, and return where they are, in words and without credentials.

        Args:
            tracker: "wandb", "mlflow" or "tensorboard".
            project: Weights & Biases project or MLflow experiment. None uses the tracker's environment.
            into: Id of an existing tracker run to add to. None creates a new run.
            folder: Log folder; required for TensorBoard.

        Raises:
            ArgumentError: The tracker is unknown, or TensorBoard has no folder.
            RlscopeError: The tracker's library is not installed or rejects the data.
        """
        from rlscope.exports.trackers import TRACKERS, Target, push_analysis

        check_one_of("tracker", tracker, TRACKERS)
        target = Target(tracker, project, into, None if folder is None else Path(folder))
        return push_analysis(self.drawn, target)

    def frame(self, part: Part) -> pl.DataFrame:
        """Return a part of the JSON document as a polars frame. Column names carry their unit.

        Args:
            part: "ledger", one row per state; "staleness", trained tokens by staleness in versions; "findings", the
                most expensive first; "actions", the recommended ones in order. An interval is three columns.

        Raises:
            ArgumentError: There is no such part.
        """
        check_one_of("part", part, get_args(Part))
        if part == "staleness":
            tokens = self.staleness.tokens
            schema = {"staleness": pl.Int64, "tokens": pl.Int64}
            return pl.DataFrame(list(tokens.histogram) if tokens else [], schema, orient="row")
        document = analysis_document(self)
        rows = {"ledger": document.ledger.states, "findings": document.findings, "actions": document.actions}[part]
        return pl.DataFrame([single_values(row) for row in rows], infer_schema_length=None, strict=False)

    def to_json(self) -> str:
        """Return the analysis as JSON, the document of `rlscope analyze --json`."""
        return dump(analysis_document(self))

    @property
    def blocks(self) -> Iterable[Block]:
        """The parts of the card."""
        return card_blocks(self)

    def to_markdown(self) -> str:
        """Return the first screen as Markdown, for a pull request or a chat."""
        return markdown(first_screen(self).values())

    def _page(self) -> str:
        from rlscope.reports.page.html import render

        return render(self.drawn)

    def __repr__(self) -> str:
        return repr_of("Analysis", self.run.run_id, headline(self))

    def _repr_html_(self) -> str:
        from rlscope.reports.page.html import notebook

        return notebook(first_screen(self).values())


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class WhatIfAnswer(InBlocks, WhatIf):
    """Prediction of a run with changed settings, next to the current run; returned by `Analysis.what_if`."""

    run_id: str
    """Identifier of the run."""
    model: ModelResult
    """The model of the current run."""

    def to_json(self) -> str:
        """Return the answer as JSON, the document of `rlscope what-if --json`."""
        return dump(what_if_document(self.model, self))

    @property
    def blocks(self) -> Iterable[Block]:
        """The answer and what it assumes."""
        return what_if_blocks(self.model, self)

    def __repr__(self) -> str:
        return repr_of("WhatIfAnswer", self.run_id, what_if_headline(self))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlanAnswer(InBlocks, PlanResult):
    """Recommended layout of a planned run, returned by `plan`."""

    file: PlanFile
    """The plan as it was read."""

    def to_json(self) -> str:
        """Return the answer as JSON, the document of `rlscope plan --json`."""
        return dump(plan_document(self, self.file))

    @property
    def blocks(self) -> Iterable[Block]:
        """The recommended layout, the others, and what the answer depends on."""
        return plan_blocks(self, self.file)

    def __repr__(self) -> str:
        return repr_of("PlanAnswer", self.file.source.name, plan_headline(self))


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(_WithPage, InBlocks, RunComparison):
    """Comparison with a baseline, returned by `compare`: what changed and why, and whether it is significant."""

    @cached_property
    def charts(self) -> "Charts":
        """Charts of the report: `charts.staleness()` returns an Altair chart, `dir(charts)` lists all of them."""
        from rlscope.reports.page.comparison import figures_of
        from rlscope.reports.page.html import Charts

        return Charts(lambda: figures_of(self))

    def to_json(self) -> str:
        """Return the comparison as JSON, the document of `rlscope compare --json`."""
        return dump(compare_document(self))

    @property
    def blocks(self) -> Iterable[Block]:
        """The answer for each run, then the numbers."""
        return comparison_blocks(self)

    def _page(self) -> str:
        from rlscope.reports.page.comparison import render_comparison

        return render_comparison(self)

    def __repr__(self) -> str:
        return repr_of("Comparison", self.baseline.name, "; ".join(pair.answer.headline for pair in pair_blocks(self)))


@dataclass(frozen=True, repr=False)
class RunList(_WithPage, InBlocks, Document):
    """Output of `rlscope list --format json`, returned by `list_runs`: the runs below a folder."""

    runs: tuple[RunEntry, ...]
    """The runs, in the requested order."""
    folder: Annotated[str, LEFT_OUT]
    """The folder, as the caller gave it."""

    @property
    def blocks(self) -> Iterable[Block]:
        """The runs as a table, with notes."""
        return list_blocks(self.runs)

    def frame(self) -> pl.DataFrame:
        """Return the list as a polars frame with one row per run. Column names carry their unit."""
        return pl.DataFrame({name: [getattr(each, name) for each in self.runs] for name in NAMES}, strict=False)

    def to_csv(self) -> str:
        """Return the list as CSV with one row per run, whose columns are the keys of the JSON."""
        from rlscope.reports.text.history import as_csv

        return as_csv(self.runs)

    def _page(self) -> str:
        from rlscope.reports.page.html import page

        title = f"{counted(len(self.runs), 'run')} in {self.folder}"
        return page("history.html", title, {"blocks": self.blocks})

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        return repr_of("RunList", self.folder, counted(len(self.runs), "run"))
