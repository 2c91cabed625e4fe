"""A run held to rules: what fires, what is held back, and how it is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.offline import RuleReport
from rlscope.alerts.types import WHOLE_RUN, Rule, RuleKind, RuleSet, RuleWindow
from rlscope.analysis.result import Alert
from rlscope.pipeline import check
from rlscope.reports.check import as_json, as_text, check_blocks
from rlscope.reports.markdown import markdown
from rlscope.reports.text import rules
from tests.alerts.given import S, rule, run_of
from tests.trace_folder import worker, write_run

I = 10  # seconds from tick to tick  # noqa: E741
TICK = RuleWindow(I * S)


def idle(above: float = 0.5, window: RuleWindow = TICK, kind: RuleKind = "alarm", **more: Any) -> Rule:
    return rule("idle", "idle.trainer_ratio", above, window, kind=kind, **more)


def silent(above_s: float = 5) -> Rule:
    return rule("silent", "worker.silent_s", above_s, RuleWindow(S), "critical", kind="data_quality")


def alerts(folder: Path, *rules: Rule, warm_up_steps: int = 0) -> list[tuple[str, int, int | None]]:
    """Rule, start and end in seconds."""
    report = check(folder, RuleSet(rules, I * S, warm_up_steps))
    return [
        (each.rule, each.start_ns // S, None if each.end_ns is None else each.end_ns // S) for each in report.alerts
    ]


WHOLE = {"waits_s": [(0, 60)]}
WARMING = WHOLE | {"steps_s": (5, 9, 20)}
STEPPING = {"waits_s": [(0, 10)], "steps_s": (15, 25, 35, 45)}


@pytest.mark.parametrize(
    ("run", "rule", "warm_up_steps", "fired"),
    [
        # From the tick that fires to the tick that resolves. With exactly half of a bucket idle, "above 0.5" is wrong.
        ({"waits_s": [(10, 28), (40, 46)]}, idle(), 0, [("idle", 20, 40), ("idle", 50, 60)]),
        ({"waits_s": [(10, 15)]}, idle(), 0, []),
        # A window covers several buckets, and a pending rule waits.
        ({"waits_s": [(10, 30)]}, idle(0.6, RuleWindow(20 * S)), 0, [("idle", 30, 40)]),
        ({"waits_s": [(10, 30)]}, idle(for_ns=10 * S), 0, [("idle", 30, 40)]),
        # What fires at the end of the run has no end.
        ({"waits_s": [(0, 25)], "stop_s": 25}, idle(keep_firing_for_ns=S), 0, [("idle", 10, None)]),
        # Warm-up is what comes before the first tick after the named step. The third one ends on the tick at 20 s, so
        # that the first bucket after warm-up begins there.
        (WARMING, idle(), 2, [("idle", 20, None)]),
        (WARMING, idle(), 3, [("idle", 30, None)]),
        (WARMING, idle(), 4, []),
        (WARMING, idle(kind="data_quality"), 4, [("idle", 10, None)]),
        # At 40 s three steps have ended; the last two of them began to count with the end of the first, at 15 s.
        (STEPPING, idle(0.01, RuleWindow(None, 2)), 0, [("idle", 10, 40)]),
        (STEPPING, idle(0.01, RuleWindow(None, 3)), 0, [("idle", 10, 50)]),
        # Too little evidence is no data, and exactly enough is enough.
        (WHOLE, idle(min_evidence=21), 0, []),
        (WHOLE, idle(min_evidence=20), 0, [("idle", 10, None)]),
        ({"waits_s": [], "stop_s": 0}, idle(), 0, []),
    ],
)
def test_a_rule_fires_from_a_tick_to_a_tick(
    tmp_path: Path, run: dict[str, Any], rule: Rule, warm_up_steps: int, fired: list[tuple[str, int, int | None]]
) -> None:
    given = dict(run)
    folder = run_of(tmp_path / "run", *given.pop("waits_s"), **given)
    assert alerts(folder, rule, warm_up_steps=warm_up_steps) == fired


def test_hints_are_held_back_while_the_data_is_in_doubt_and_alarms_are_not(tmp_path: Path) -> None:
    dead = worker("e0", "sampler", 0, None, last_flush_ns=22 * S)
    folder = run_of(tmp_path / "run", (22, 40), stop_s=40, workers=(dead,))
    assert [each[:2] for each in alerts(folder, silent(), idle(kind="hint"))] == [("silent", 30)]
    assert [each[:2] for each in alerts(folder, silent(), idle(kind="alarm"))] == [("idle", 30), ("silent", 30)]
    # Eight seconds of silence at 30 s are not more than eight.
    assert [each[:2] for each in alerts(folder, silent(8), idle(kind="hint"))] == [("idle", 30), ("silent", 40)]


def test_a_hint_that_is_held_back_to_the_end_is_said_to_lack_no_data(tmp_path: Path) -> None:
    dead = worker("e0", "sampler", 0, None, last_flush_ns=S)
    folder = run_of(tmp_path / "run", (22, 40), stop_s=40, workers=(dead,))
    said = as_text(check(folder, RuleSet((silent(), idle(kind="hint")), I * S, 0)), "critical")
    assert "1 of 2 rules not judged (warm-up, too little data, or the alerts on data quality): idle" in said


def test_a_run_without_workers_fires_nothing(tmp_path: Path) -> None:
    assert alerts(write_run(tmp_path / "run", []), idle(), silent()) == []


def report_of(tmp_path: Path) -> RuleReport:
    folder = run_of(tmp_path / "run", (10, 28))
    quiet = rule("quiet", "queue.depth", 1, WHOLE_RUN, "critical")
    noted = idle(annotations={"summary": "50% | {value}\nof {rule}"})
    return check(folder, RuleSet((noted, quiet, silent()), I * S, 0))


def test_every_format_tells_the_firing_and_what_was_not_judged(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert (report.fails("info"), report.fails("warning"), report.fails("critical")) == (True, True, False)
    text = as_text(report, "warning")
    assert "WARNING   idle  from 20 s to 40 s" in text
    assert "idle.trainer_ratio over 10s > 50.0%: 80.0% (worst 100%), over 20 GPU-s" in text
    assert "1 of 3 rules not judged (warm-up, or too little data): quiet" in text
    assert text.endswith("failed: a rule of severity warning or above fired")
    assert "failed" not in as_text(report, "critical")
    assert (
        "| warning | idle | from 20 s to 40 s | 80.0% (worst 100%), over 20 GPU-s; 50% \\| 80.0% of idle |"
        in markdown(check_blocks(report, "warning"))
    )


def test_json_holds_the_numbers_as_measured(tmp_path: Path) -> None:
    document = json.loads(as_json(report_of(tmp_path), "warning"))
    assert (document["failed"], document["fail_on"], document["run_id"]) == (True, "warning", "run")
    ticks = {each["rule"]["name"]: (each["evaluated_ticks"], each["ticks"]) for each in document["rules"]}
    assert ticks == {"idle": (6, 6), "quiet": (0, 6), "silent": (6, 6)}
    assert [each["fired"] for each in document["rules"]] == [1, 0, 0]
    (fired,) = document["alerts"]
    assert fired | {"fingerprint": "", "labels": {}, "annotations": {}} == {
        "rule": "idle", "severity": "warning", "labels": {}, "annotations": {}, "value": 0.8, "worst_value": 1.0,
        "evidence": 20, "held_since_ns": 20 * S, "start_ns": 20 * S, "end_ns": 40 * S,
        "fingerprint": "", "evaluated_over_s": None,
    }  # fmt: skip


def test_a_fingerprint_is_the_rules_and_its_labels_whatever_the_value() -> None:
    def alert(rule: str, value: float, **labels: str) -> str:
        return Alert(rule, "info", labels, {"s": str(value)}, value, int(value), None).fingerprint

    assert alert("a", 1, x="1", y="2") == alert("a", 2, y="2", x="1")
    assert len({alert("a", 1), alert("b", 1), alert("a", 1, x="1"), alert("a", 1, x="2"), alert("a", 1, y="1")}) == 5


@pytest.mark.parametrize("width", [80, 120])
def test_what_is_listed_is_folded_below_its_own_column_on_a_terminal(width: int) -> None:
    folded, whole = (rules.as_text(built_in_rules(), each) for each in (width, None))
    assert max(map(len, folded.splitlines())) <= width < max(map(len, whole.splitlines()))
    assert " ".join(folded.split()) == " ".join(whole.split())
    assert "  staleness.tokens.p50              versions  median staleness of the trained" in folded
