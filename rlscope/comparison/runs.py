"""Compares runs with a baseline, reading each run once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlscope.analysis.result import AnalysisResult
from rlscope.comparison.attribution import Attribution, attribute
from rlscope.comparison.differences import Differences, differences_of
from rlscope.comparison.facts import ALSO_ASKED, ComparedRun, counting_prompts, run_of
from rlscope.comparison.repeats import RepeatedSetting, repeated_settings
from rlscope.comparison.warnings import CompareWarning, warnings_of
from rlscope.errors import AnalysisError
from rlscope.pipeline import analyze


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The comparison of one run with the baseline."""

    run: ComparedRun
    differences: Differences
    attribution: Attribution
    warnings: tuple[CompareWarning, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RunComparison:
    """The baseline, and the comparison of every other run with it."""

    baseline: ComparedRun
    pairs: tuple[Pair, ...]
    repeated: tuple[RepeatedSetting, ...]
    """Settings that were run several times, each compared with that of the baseline."""

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """All runs, the baseline first."""
        return (self.baseline, *(pair.run for pair in self.pairs))


def compare_runs(baseline: ComparedRun, others: Sequence[ComparedRun]) -> RunComparison:
    """Compare runs that have been read."""
    pairs = tuple(_pair(baseline, other) for other in others)
    return RunComparison(baseline, pairs, repeated_settings((baseline, *others)))


def _pair(baseline: ComparedRun, other: ComparedRun) -> Pair:
    if baseline.counts_prompts != other.counts_prompts:
        baseline, other = counting_prompts(baseline), counting_prompts(other)
    differences = differences_of(baseline, other)
    attribution = attribute(baseline, other, differences)
    return Pair(other, differences, attribution, warnings_of(baseline, other, differences, attribution))


def read_runs(
    sources: Sequence[Path | AnalysisResult], paths: Sequence[Path], progress: Callable[[str], None]
) -> tuple[ComparedRun, ...]:
    """Read run folders and analysis results, and give each run a distinct name.

    paths: the path that the user gave for each source, for example the log that a folder was imported from.

    Raises AnalysisError if there are fewer than two, RunFolderError if one cannot be read.
    """
    if len(sources) < 2:
        raise AnalysisError.of(
            "a comparison",
            found=f"{len(sources)} run",
            expected="a baseline and one run or more to compare with it",
            next_step="Name them in this order: `rlscope compare BASELINE RUN`.",
        )
    return named([_read(source, progress) for source in sources], paths)


def _read(source: Path | AnalysisResult, progress: Callable[[str], None]) -> ComparedRun:
    if isinstance(source, AnalysisResult):
        return run_of(source)
    return run_of(analyze(source, progress=lambda doing: progress(f"{source}: {doing}"), also_ask=ALSO_ASKED))


def named(runs: Sequence[ComparedRun], paths: Sequence[Path]) -> tuple[ComparedRun, ...]:
    """Return the runs with distinct names: their ids, else the names of folders or files, else numbered ids."""
    ids = [run.name for run in runs]
    given = [path.stem if path.is_file() else path.resolve().name for path in paths]
    numbered = [f"{each} #{n}" for n, each in enumerate(ids, 1)]
    names = next(names for names in (ids, given, numbered) if len({*filter(None, names)}) == len(runs))
    return tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))
