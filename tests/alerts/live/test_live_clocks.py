"""Clocks of hosts that disagree are corrected while a run is watched, and what is known of them is said."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from rlscope_otel.schema import TIMES

from rlscope.alerts.live.facts import LiveView
from rlscope.alerts.live.follow import LiveRun
from rlscope.alerts.types import RuleSet
from rlscope.errors import UnreadableDataError
from rlscope.trace.store import OpenRun
from tests.alerts.live.growing_run import every_rule
from tests.several_hosts import NS, START_NS, Clock, MadeRun, made_run, off

RULES = RuleSet((), interval_ns=5 * NS, warm_up_steps=0)
END_NS = START_NS + 41 * NS


def written(folder: Path, run: MadeRun, clocks: Mapping[str, Clock]) -> Path:
    run.write(folder, clocks)
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | {"created_ns": START_NS}))
    return folder


def watched(folder: Path, clocks: Mapping[str, Clock], rules: RuleSet = RULES) -> LiveView:
    """What the watch says of a whole run that is met soon after its end."""
    return LiveRun(written(folder, made_run(), clocks), rules).poll(END_NS + 40 * NS)


def ratios(view: LiveView) -> dict[tuple[str, str], float]:
    return {(side.role, state): ratio for side in view.facts.sides for state, ratio in side.state_ratios.items()}


@pytest.fixture(scope="module")
def true(tmp_path_factory: pytest.TempPathFactory) -> LiveView:
    """What is said where no clock is off."""
    return watched(tmp_path_factory.mktemp("runs") / "true", {})


@pytest.mark.parametrize("skew_s", [5.0, -60.0])
def test_a_host_whose_clock_is_off_is_corrected_and_named(skew_s: float, true: LiveView, tmp_path: Path) -> None:
    found = watched(tmp_path / "off", {"be1": off(skew_s)})
    assert ratios(found) == pytest.approx(ratios(true), abs=0.02)
    assert found.facts.queue_depth_samples == true.facts.queue_depth_samples
    assert found.ended and true.ended
    (note,) = found.problems
    side = "ahead of" if skew_s > 0 else "behind"
    assert note.startswith("clock of be1: ") and f" {side} a (uncertainty " in note
    assert note.endswith("its times are corrected")


def test_clocks_that_agree_are_left_alone_and_not_mentioned(true: LiveView) -> None:
    assert true.problems == ()


def test_the_same_rules_fire_whatever_the_clocks_say(tmp_path: Path) -> None:
    rules = every_rule(5 * NS)
    kept = RuleSet(tuple(rule for rule in rules.rules if rule.metric != "queue.wait_p95_s"), 5 * NS, warm_up_steps=2)
    true = watched(tmp_path / "true", {}, kept)
    found = watched(tmp_path / "off", {"be0": off(60.0), "be2": off(-60.0)}, kept)
    assert {alert.rule for alert in found.alerts} == {alert.rule for alert in true.alerts}
    assert true.alerts


def test_one_host_is_never_compared_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlscope.alerts.live.clocks.compare_clocks", None)
    run = made_run(engines=1)
    run.workers = [dict(each) | {"host": "a"} for each in run.workers]
    assert LiveRun(written(tmp_path, run, {}), RULES).poll(END_NS + 40 * NS).problems == ()


def test_rows_by_which_clocks_cannot_be_compared_do_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: OpenRun, workers: object) -> None:
        raise UnreadableDataError("overflow")

    monkeypatch.setattr("rlscope.alerts.live.clocks.compare_clocks", fail)
    view = watched(tmp_path / "off", {"be1": off(5.0)})
    assert "clocks cannot be compared: overflow" in view.problems
    assert view.facts is not None and view.facts.steps == 40


LONG_S = 150
MEETS_S = 50.2
"""When be1 first works for the trainer; before, nothing compares its clock with another."""


def is_joined(row: Mapping[str, object]) -> bool:
    """Whether a row of a table that joins hosts is not of e1, on be1."""
    return not str(row.get("sample_id", row["worker_id"])).startswith("e1")


def grow(folder: Path, since_s: float, until_s: float, number: int) -> None:
    """Write the files of a stretch of a run in which the clock of be1 is 5 s ahead."""
    run, counts = made_run(steps=LONG_S), dict[str, Counter[str]]()
    since_ns, until_ns = (START_NS + round(each_s * NS) for each_s in (since_s, until_s))
    for table, rows in run.tables.items():
        if table in ("samples", "deliveries", "weight_updates"):
            rows = [row for row in rows if is_joined(row) or row[TIMES[table][1]] >= START_NS + MEETS_S * NS]
        until = [row for row in rows if row[TIMES[table][1]] < until_ns]
        for row in until:
            counts.setdefault(row["worker_id"], Counter())[table] += 1
        run.tables[table] = [row for row in until if row[TIMES[table][1]] >= since_ns]
    flushed = {"stopped_ns": None, "last_flush_ns": until_ns}
    run.workers = [{**each, **flushed, "rows": counts[str(each["worker_id"])]} for each in run.workers]
    part = written(folder.parent / f"part-{number}", run, {"be1": off(5.0)})
    for path in sorted(part.rglob("*.*")):
        target = folder / path.relative_to(part)
        target.parent.mkdir(parents=True, exist_ok=True)
        numbered = target.with_name(f"{path.stem.rpartition('-')[0] or path.stem}-{number:06d}.parquet")
        path.rename(numbered if path.suffix == ".parquet" else target)


def late_notes(view: LiveView) -> list[str]:
    return [note for note in view.problems if "evaluated by it" in note]


def watched_while_it_grows(folder: Path) -> LiveRun:
    """A watch that compared the clocks before anything showed that one is off, and evaluates by it until then."""
    live = LiveRun(folder, RULES)
    for number, (since_s, until_s) in enumerate(((0.0, 20.2), (20.2, 50.2)), start=1):
        grow(folder, since_s, until_s, number)
        view = live.poll(START_NS + round(until_s * NS))
        assert view.problems == ()
    assert view.evaluated_ns is not None and view.evaluated_ns > START_NS + 30 * NS
    grow(folder, 50.2, 140.2, 3)
    return live


def test_ticks_that_were_evaluated_before_a_clock_was_found_off_are_named_and_computed_again(tmp_path: Path) -> None:
    """Named from then on; computed again where their rows are still there."""
    live = watched_while_it_grows(tmp_path / "run")
    view = live.poll(START_NS + 140 * NS)
    (note,) = late_notes(view)
    assert note.startswith("clock of be1: found to be off after the ticks until 2026-09-21 14:14:05 UTC ")
    # A watch that goes on from there finds nothing new.
    again = LiveRun.restored(tmp_path / "run", RULES, json.loads(json.dumps(live.saved())))
    assert late_notes(again.poll(START_NS + 140 * NS)) == []
    at_once = LiveRun(tmp_path / "run", RULES).poll(START_NS + 140 * NS)
    assert ratios(view) == pytest.approx(ratios(at_once))


def test_a_clock_that_was_found_off_before_the_first_tick_leaves_nothing_to_say(tmp_path: Path) -> None:
    grow(tmp_path / "run", 0.0, 140.2, 1)
    view = LiveRun(tmp_path / "run", RULES).poll(START_NS + 140 * NS)
    assert any(note.startswith("clock of be1: ") for note in view.problems)
    assert late_notes(view) == []
