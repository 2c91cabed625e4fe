"""Clocks of hosts that disagree are corrected while a run is watched, and what is known of them is said."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlscope.alerts.live.facts import LiveView
from rlscope.alerts.live.follow import LiveRun
from rlscope.alerts.types import RuleSet
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
    assert view.facts is not None
    return {(side.role, state): ratio for side in view.facts.sides for state, ratio in side.state_ratios.items()}


@pytest.mark.parametrize("skew_s", [5.0, -5.0, 60.0, -60.0])
def test_a_host_whose_clock_is_off_is_corrected_and_named(skew_s: float, tmp_path: Path) -> None:
    true, found = watched(tmp_path / "true", {}), watched(tmp_path / "off", {"be1": off(skew_s)})
    assert ratios(found) == pytest.approx(ratios(true), abs=0.02)
    assert found.facts is not None and true.facts is not None
    assert found.facts.queue_depth_samples == true.facts.queue_depth_samples
    assert found.ended and true.ended
    (note,) = found.problems
    side = "ahead of" if skew_s > 0 else "behind"
    assert note.startswith("clock of be1: ") and f" {side} a (uncertainty " in note
    assert note.endswith("its times are corrected")


def test_clocks_that_agree_are_left_alone_and_not_mentioned(tmp_path: Path) -> None:
    assert watched(tmp_path / "true", {}).problems == ()


def test_the_same_rules_fire_whatever_the_clocks_say(tmp_path: Path) -> None:
    rules = every_rule(5 * NS)
    kept = RuleSet(tuple(rule for rule in rules.rules if rule.metric != "queue.wait_p95_s"), 5 * NS, warm_up_steps=2)
    true = watched(tmp_path / "true", {}, kept)
    found = watched(tmp_path / "off", {"be0": off(60.0), "be2": off(-60.0)}, kept)
    assert {alert.rule for alert in found.alerts} == {alert.rule for alert in true.alerts}
    assert true.alerts


def test_one_host_is_never_compared_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlscope.alerts.live.clocks.estimate_run_clocks", None)
    run = made_run(engines=1)
    run.workers = [dict(each) | {"host": "a"} for each in run.workers]
    assert LiveRun(written(tmp_path, run, {}), RULES).poll(END_NS + 40 * NS).problems == ()
