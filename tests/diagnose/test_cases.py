"""Each rule finds what its case file says, and every threshold of a rule has cases that a nudge of it would change."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest

from rlscope import diagnose
from rlscope.analysis.result import Finding
from rlscope.diagnose import find_all
from rlscope.diagnose.evidence import Evidence, FindingRule
from rlscope.pipeline import find_problems
from rlscope.reports.text import findings
from rlscope.trace.query import Grid, ask
from rlscope.trace.store import OpenRun, read_run
from tests.case_files import Case, cases_of
from tests.trace_folder import train_row, worker, write_run

RULES = {rule.name: rule for rule in diagnose.RULES}
CASES = {(case.file, case.name): case for case in cases_of(Path(__file__).parent / "cases")}


WITHOUT_LEDGER = frozenset(
    {
        "drifting_lengths", "full_kv_cache", "hollow_reward", "rising_truncation", "shared_gpu", "stale_reward",
        "stalled", "straggling_engine", "weights_not_applied",
    }
)  # fmt: skip
"""Rules that read no GPU time. The ledger takes longer than all else about a case: one that starts to read it fails."""
WITHOUT_READINGS: list[pl.DataFrame] = []
"""The answer about GPUs of a run that has no readings of them, which takes as long as any other: asked for once."""


class Asked(dict[str, pl.DataFrame]):
    """The answers about a case's run, each asked for when it is first read: a rule reads a few of many."""

    def __init__(self, case: Case, run: OpenRun, grid: Grid, names: Sequence[str]) -> None:
        super().__init__()
        self.run: OpenRun | None = run
        self._case, self._grid, self._names = case, grid, set(names)
        if case.file in WITHOUT_LEDGER:
            self.update(ledger=pl.DataFrame(), gpu_agreement=pl.DataFrame())

    def __missing__(self, name: str) -> pl.DataFrame:
        if name not in self._names:
            raise KeyError(name)
        has_none = name == "gpu_agreement" and "gpu_samples" not in self._case.tables
        if has_none and WITHOUT_READINGS:
            return WITHOUT_READINGS[0]
        with self._case.open() if self.run is None else nullcontext(self.run) as run:
            self[name] = ask(run, name, asdict(self._grid))
        if has_none:
            WITHOUT_READINGS.append(self[name])
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names or super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401

    def pop(self, name: str) -> pl.DataFrame:
        answer = self[name]
        self._names.discard(name)
        del self[name]
        return answer


@cache
def evidence_of(file: str, name: str) -> Evidence:
    """What the case's run shows to the rules; one that starts to read what only the page draws fails.

    One rule reads the quality of the data, and none the staleness of tokens: another that reads them fails.
    """
    with (
        CASES[file, name].open() as run,
        patch("rlscope.pipeline._ask_all", partial(Asked, CASES[file, name])),
        patch("rlscope.pipeline.summarize_staleness", lambda *_: None),
        nullcontext() if file == "data_quality_gaps" else patch("rlscope.pipeline.assess_quality", lambda *_: None),
        patch("rlscope.pipeline.find_all") as given,
        ExitStack() as patches,
    ):
        for name in ("close_ledger", "ledger_timeline") if file in WITHOUT_LEDGER else ():
            patches.enter_context(patch(f"rlscope.pipeline.{name}", lambda *_: None))
        find_problems(run)
        (evidence,) = given.call_args.args
        RULES[file].find(evidence)
    evidence.answers.run = None
    return evidence


def found(case: Case) -> Finding | None:
    return RULES[case.file].find(evidence_of(case.file, case.name))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: f"{case.file}: {case.name}")
def test_the_rule_finds_what_the_case_expects(case: Case) -> None:
    finding = found(case)
    if case.expect == "quiet":
        assert finding is None
        return
    assert finding.rule == case.file
    facts = {"severity": finding.severity, "cost_gpu_s": finding.cost_gpu_s, **finding.evidence}
    for name, value in case.expect.items():
        assert facts[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name
    sentence = findings.sentence(finding)
    assert sentence.endswith(".") and "{" not in sentence and "None" not in sentence


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_firing_and_a_quiet_case_and_every_number_of_its_evidence_is_expected_once(rule: str) -> None:
    own = [case for case in CASES.values() if case.file == rule]
    fired = [case for case in own if case.expect != "quiet"]
    assert fired and len(fired) < len(own)
    evidence = {name for case in fired for name in found(case).evidence}
    assert evidence <= {name for case in fired for name in case.expect}


def test_every_case_file_belongs_to_a_rule_and_every_rule_is_a_module_of_its_name() -> None:
    assert {file for file, _ in CASES} == set(RULES)
    assert len(RULES) == len(diagnose.RULES)
    for name, rule in RULES.items():
        assert getattr(diagnose, name).RULE is rule


def thresholds() -> list[tuple[str, str, float]]:
    modules: dict[str, ModuleType] = {rule: getattr(diagnose, rule) for rule in RULES}
    return [
        (rule, name, step)
        for rule, module in modules.items()
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int | float)
        for step in ((-1, 1) if isinstance(value, int) else (-0.01 * value, 0.01 * value))
    ]


def outcomes(rule: str) -> Iterator[object]:
    """What each case of a rule finds, without the values of its evidence."""
    for finding in (found(case) for case in CASES.values() if case.file == rule):
        yield finding and (finding.severity, finding.evidence.keys())


@cache
def outcomes_as_it_is(rule: str) -> list[object]:
    return list(outcomes(rule))


@pytest.mark.parametrize(("rule", "threshold", "step"), thresholds())
def test_moving_a_threshold_changes_what_some_case_finds(
    rule: str, threshold: str, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, module = outcomes_as_it_is(rule), getattr(diagnose, rule)
    monkeypatch.setattr(module, threshold, getattr(module, threshold) + step)
    assert any(now != then for now, then in zip(outcomes(rule), before, strict=True))


@pytest.mark.parametrize(("skipped", "missing"), [(1, 0), (0, 1)])
def test_a_skipped_file_and_a_missing_row_are_gaps_whatever_the_ledger_says(
    skipped: int, missing: int, tmp_path: Path
) -> None:
    counted = worker("t0", stop_ns=100, rows={"train_steps": 1 + missing})
    write_run(tmp_path, [counted], train_steps=[train_row("t0", 0, 100)])
    (tmp_path / "samples").mkdir()
    for number in range(skipped):
        (tmp_path / "samples" / f"e0-{number:06d}.parquet").write_bytes(b"")
    (finding,) = read_run(tmp_path, find_problems)
    assert (finding.rule, finding.severity) == ("data_quality_gaps", "warning")
    assert (finding.evidence["skipped_files"], finding.evidence["missing_rows"]) == (skipped, missing)


def test_findings_are_ordered_by_price_and_what_has_none_comes_last_or_first_when_it_is_critical() -> None:
    given = [
        Finding("long_tail", "warning", 3.0, {}, None, None),
        Finding("overproduction", "warning", None, {}, None, None),
        Finding("weights_not_applied", "critical", None, {}, None, None),
        Finding("capped_staleness", "critical", 9.0, {}, None, None),
        Finding("weight_update_cost", "warning", 3.0, {}, None, None),
    ]
    rules = tuple(FindingRule("", (), "", lambda _, one=one: one) for one in given)
    with patch("rlscope.diagnose.RULES", rules):
        names = [finding.rule for finding in find_all(None)]
    assert names == ["weights_not_applied", "capped_staleness", "long_tail", "weight_update_cost", "overproduction"]
