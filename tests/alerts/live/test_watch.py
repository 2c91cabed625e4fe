import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from rlscope.alerts.live.facts import LiveFacts, LiveView, SideState
from rlscope.alerts.live.follow import RunProgress
from rlscope.alerts.live.state_file import NO_STATE, StateFile, WatchState, read_state
from rlscope.alerts.live.watch import Outcome, RunWatch
from rlscope.alerts.notify.couriers import Couriers
from rlscope.analysis.result import Alert, Loss, TokenStaleness, Verdict
from rlscope.diagnose.straggling_engine import Straggler
from rlscope.errors import RlscopeError
from tests.alerts.notify.given import NOON_NS, S, alert, at_once, receiver
from tests.alerts.notify.listener import Listener, listening

BARE = {"severity": "warning"}


@dataclass
class FakeClock:
    ns: int = NOON_NS

    def now_ns(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += max(1, round(seconds * S))

    def cpu_s(self) -> float:
        return 0.0


FACTS = LiveFacts(
    run_id="monday",
    started_ns=NOON_NS,
    steps=120,
    last_step_end_ns=NOON_NS - 4 * S,
    newest_ns=NOON_NS - 1 * S,
    verdict=Verdict("samplers", (Loss("samplers", 38.0, 0.38),), None, NOON_NS - 90 * S, NOON_NS, ()),
    sides=(
        SideState("sampler", 2, 2, {"decoding": 0.75, "no_requests": 0.25}),
        SideState("trainer", 1, 4, {"train": 0.62, "waiting_for_samples": 0.38}),
    ),
    running_per_engine=41.5,
    waiting_requests=3.0,
    kv_used_ratio=0.5,
    staleness=TokenStaleness(mean=1.25, p50=1, p95=4, p99=5, max=6, histogram=((1, 1),)),
    queue_depth_samples=12.0,
    trained_tokens_per_s=5300.0,
    silent_s={},
    straggler=None,
    stall=None,
)


def view(*alerts: Alert, seconds: float = 0, ended: bool = False, **changes: Any) -> LiveView:
    now_ns = NOON_NS + round(seconds * S)
    known = LiveView(now_ns=now_ns, evaluated_ns=now_ns, alerts=alerts, facts=FACTS, ended=ended, problems=())
    return replace(known, **changes)


@dataclass
class FakeRun:
    """Shows the given views one after another, and remembers how many it showed."""

    views: Sequence[LiveView]
    shown: int = 0
    polls_ns: list[int] = field(default_factory=list)

    def poll(self, now_ns: int) -> LiveView:
        self.polls_ns.append(now_ns)
        self.shown += 1
        return replace(self.views[self.shown - 1], now_ns=now_ns)

    def saved(self) -> RunProgress:
        return RunProgress(evaluated=self.shown)

    def close(self) -> None:
        self.views = [replace(each, alerts=()) for each in self.views]


def watch_of(
    run: FakeRun,
    couriers: Couriers,
    file: StateFile | None = None,
    show: Callable[[LiveView], None] = lambda _: None,
    clock: FakeClock | None = None,
    worst: Any = None,
) -> RunWatch:
    """A watch that looks every five seconds."""
    clock = clock or FakeClock()
    return RunWatch(run, couriers, state_file=file, show=show, interval_s=5.0, clock=clock, worst=worst)


def follow(
    views: Sequence[LiveView],
    listener: Listener | None = None,
    *,
    state_path: Path | None = None,
    interrupt_after: int | None = None,
    clock: FakeClock | None = None,
    seen: list[LiveView] | None = None,
    **receiving: Any,
) -> tuple[Outcome, FakeRun]:
    """One watch over these views, from the state that an earlier one left; interrupted once so many were shown."""
    to = [] if listener is None else [receiver(**({"url": listener.url, "interval_s": 0.0} | receiving))]
    couriers = Couriers(to, start=at_once)
    run = FakeRun(views)
    worst = None
    with nullcontext() if state_path is None else StateFile(state_path) as file:
        if file is not None:
            state = file.read()
            couriers = Couriers(to, state.receivers, start=at_once)
            run.shown, worst = state.run.evaluated if state.run else 0, state.worst
        watch = watch_of(run, couriers, file, show=([] if seen is None else seen).append, clock=clock, worst=worst)
        outcome = watch.follow(lambda: int(interrupt_after is not None and run.shown >= interrupt_after))
    return outcome, run


def told(listener: Listener) -> list[tuple[str, str]]:
    return [(each["labels"]["alertname"], each["status"]) for body in listener.bodies for each in body["alerts"]]


NOTHING = view(facts=None, evaluated_ns=None)
RARER = "polls are rarer than --interval: the last took {} of CPU time, so the next is in {}"


@pytest.mark.parametrize(
    ("looks_s", "pauses_s", "said"),
    [
        ((0.25, 0.25, 0.25), (5, 5, 5), ()),
        # The first 75 s are not owed.
        ((4.0, 1.0), (5, 19 - 4), (RARER.format("1 s", "15 s"),)),
        # Nor is what a cheap look rested longer than it had to.
        ((4.0, 0.0, 1.0), (5, 5, 19 - 4 - 5), (RARER.format("1 s", "10 s"),)),
        ((600.0, 4.0), (75, 75), (RARER.format("4 s", "1 min 15 s"),)),
    ],
    ids=["cheap looks", "expensive ones", "some of them", "the longest pause"],
)
def test_pauses_are_nineteen_times_as_long_as_looks_take_cpu_time_and_longer_ones_are_said(
    looks_s: tuple[float, ...], pauses_s: tuple[int, ...], said: tuple[str, ...]
) -> None:
    spent_s = accumulate([0.0, *(each for look_s in looks_s for each in (look_s, 0.0)), 0.0])

    class Busy(FakeClock):
        def cpu_s(self) -> float:
            """Read at the beginning and at the end of each look."""
            return next(spent_s)

    seen: list[LiveView] = []
    _, run = follow([*(view() for _ in looks_s), view(ended=True)], clock=Busy(), seen=seen)
    assert [(after - before) / S for before, after in pairwise(run.polls_ns)] == list(pauses_s)
    assert [look.troubles for look in seen[: len(looks_s)]][-1] == said


def test_a_clock_that_is_set_back_does_not_stop_the_watch() -> None:
    class SetBack(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.ns -= 3600 * S if self.ns == NOON_NS + 2 * S else 0

    _, run = follow([view(), view(ended=True)], clock=SetBack())
    assert run.polls_ns == [NOON_NS, NOON_NS + (5 - 3600) * S]


def test_an_end_is_shown_once_though_it_is_the_run_s_last_news() -> None:
    seen: list[LiveView] = []
    follow([view(alert(), alert("stale")), view(alert(end_s=4), alert("stale"), ended=True)], seen=seen)
    ended = [[each.rule for each in look.alerts if each.end_ns is not None] for look in seen]
    assert ended == [[], ["starved"], ["stale"]]
    assert [each.rule for each in seen[-1].alerts] == ["stale"]


def test_what_fires_at_the_end_of_the_run_is_resolved_there_and_a_later_watch_says_nothing(
    listener: Listener, tmp_path: Path
) -> None:
    path, last = tmp_path / "state.json", view(alert(labels=BARE), seconds=7, ended=True)
    outcome, _ = follow([view(), view(alert(labels=BARE)), last], listener, state_path=path, interval_s=3600.0)
    assert told(listener) == [("starved", "firing"), ("starved", "resolved")]
    assert listener.bodies[0]["commonLabels"]["run"] == "monday"
    assert listener.bodies[1]["alerts"][0]["endsAt"] == "2026-01-01T12:00:07.000000000Z"
    assert outcome == Outcome(ended=True, worst="warning", untold=0)
    follow([*[view()] * 3, view(ended=True)], listener, state_path=path)
    assert len(listener.requests) == 2
    with listening() as firing_alone:
        follow([last], firing_alone, send_resolved=False)
        assert told(firing_alone) == [("starved", "firing")]
        firing_alone.answers = [500] * 99
        assert follow([last], firing_alone, send_resolved=False)[0].untold == 1


def test_a_watch_fails_when_something_grave_enough_fired() -> None:
    worst: tuple[Any, ...] = (None, "info", "warning", "critical")
    assert [Outcome(True, each, 0).failed("warning") for each in worst] == [False, False, True, True]
    assert [Outcome(True, each, 0).failed("info") for each in worst] == [False, True, True, True]


def test_what_was_over_before_the_watch_began_is_not_told_but_counts(listener: Listener) -> None:
    outcome, _ = follow([view(alert(end_s=-60, start_s=-90, severity="critical"), ended=True)], listener)
    assert (told(listener), outcome.worst) == ([], "critical")


def test_a_folder_that_appears_late_is_waited_for(listener: Listener, tmp_path: Path) -> None:
    state_path = tmp_path / "run" / "watch_state.json"
    seen: list[LiveView] = []
    outcome, _ = follow([NOTHING, NOTHING, view(alert(), ended=True)], listener, state_path=state_path, seen=seen)
    assert (outcome.ended, told(listener)) == (True, [("starved", "firing"), ("starved", "resolved")])
    assert not state_path.parent.exists()
    assert [look.troubles for look in seen] == [()] * 4


def test_what_a_changed_rule_leaves_behind_is_ended_but_not_before_anything_is_known(listener: Listener) -> None:
    follow([view(alert()), NOTHING, view(alert()), view(), view(ended=True)], listener)
    assert told(listener) == [("starved", "firing"), ("starved", "resolved")]
    assert listener.bodies[1]["alerts"][0]["endsAt"] == "2026-01-01T12:00:15.000000000Z"


VIEWS = (
    view(),
    view(alert()),
    view(alert(), alert("stale")),
    view(alert(), alert("stale", end_s=14)),
    view(alert("stale", 18)),
    view(alert(end_s=19), alert("stale", 18)),
    view(alert("stale", 18), ended=True),
)


@pytest.mark.parametrize("stop", range(1, len(VIEWS)))
def test_a_watch_that_is_ended_and_started_again_tells_what_an_unbroken_one_tells(
    stop: int, listener: Listener, tmp_path: Path
) -> None:
    with listening() as unbroken:
        whole, _ = follow(VIEWS, unbroken)
    path = tmp_path / "state.json"
    first, _ = follow(VIEWS, listener, state_path=path, interrupt_after=stop)
    assert not first.ended
    second, run = follow(VIEWS, listener, state_path=path)
    assert told(listener) == told(unbroken)
    assert len(run.polls_ns) == len(VIEWS) - stop
    assert second == whole


def test_what_a_receiver_missed_is_told_by_the_next_watch(listener: Listener, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    listener.answers = [500] * 20
    first, _ = follow([view(alert())], listener, state_path=path, interrupt_after=1)
    assert first.untold == 1
    listener.answers.clear()
    listener.requests.clear()
    follow([view(alert()), view(alert(), ended=True)], listener, state_path=path)
    assert told(listener) == [("starved", "firing"), ("starved", "resolved")]


def test_the_state_is_on_disk_before_anything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlscope.alerts.notify import couriers

    path = tmp_path / "state.json"
    found: list[WatchState] = []
    monkeypatch.setitem(couriers.SENDERS, "webhook", lambda *_: found.append(read_state(path)))
    with listening() as unused:
        follow([view(alert(), ended=True)], unused, state_path=path)
    assert [state.run for state in found] == [RunProgress(evaluated=1)] * 2


@pytest.mark.parametrize("naps", [0, 3])
def test_what_was_told_is_on_disk_before_the_next_look(naps: int, listener: Listener, tmp_path: Path) -> None:
    """The courier is back at once, or while the watch waits."""
    path = tmp_path / "state.json"
    on_the_way: list[Any] = []
    slept: list[float] = []

    class Clock(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            slept.append(seconds)
            if len(slept) == naps:
                on_the_way.pop()()

    class Run(FakeRun):
        def poll(self, now_ns: int) -> LiveView:
            oncall = read_state(path).receivers.get("oncall")
            found.append([known.told for known in oncall.known] if oncall else [])
            return super().poll(now_ns)

    found: list[list[bool]] = []
    start = on_the_way.append if naps else at_once
    couriers = Couriers([receiver(url=listener.url)], start=start)
    run = Run([view(alert()), view(alert(), ended=True)])
    with StateFile(path) as file:
        watch_of(run, couriers, file, clock=Clock()).follow(lambda: 0)
    assert found == [[], [True]]


def test_the_last_message_is_tried_again_as_long_as_that_can_help(listener: Listener) -> None:
    clock, seen = FakeClock(), list[LiveView]()
    listener.answers = [503, 503]
    outcome, _ = follow([view(alert(), ended=True)], listener, clock=clock)
    assert (outcome.untold, told(listener)) == (0, [("starved", "firing")] * 3 + [("starved", "resolved")])
    listener.answers = [503] * 9
    outcome, run = follow([view(alert("stale"), ended=True)], listener, clock=clock, seen=seen)
    # At once, and after 1, 2 and 4 s more; the next would be 8 s later, which is too late.
    assert (outcome.untold, len(listener.requests)) == (1, 4 + 4)
    assert clock.ns - run.polls_ns[0] == pytest.approx(7 * S, abs=S / 4)
    assert seen[-1].troubles == ("receiver oncall: it answered HTTP 503; retrying",)


def test_a_second_interruption_leaves_messages_unsent(listener: Listener) -> None:
    listener.answers = [503] * 1000
    clock = FakeClock()
    couriers = Couriers([receiver(url=listener.url)], start=at_once)
    watch = watch_of(FakeRun([view(alert())]), couriers, clock=clock)
    assert watch.follow(lambda: 2) == Outcome(ended=False, worst="warning", untold=1)
    assert clock.ns == NOON_NS


def test_a_state_that_cannot_be_written_does_not_stop_the_watch_and_is_said(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.mkdir()
    (path / "in the way").touch()
    seen: list[LiveView] = []
    with StateFile(path) as file:
        watch_of(FakeRun([view(ended=True)]), Couriers([]), file, seen.append).follow(lambda: 0)
    why = f"cannot write {path}: found Is a directory; expected"
    assert seen[-1].troubles[0].startswith(f"a restarted watch would send its notifications again: {why}")
    assert sorted(each.name for each in tmp_path.iterdir()) == [".state.json.lock", "state.json"]


def test_a_second_watch_with_the_same_state_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with StateFile(path) as first:
        assert first.read() == NO_STATE
        with pytest.raises(RlscopeError, match="another watch that uses it"), StateFile(path) as second:
            second.read()
        first.write(NO_STATE)
    with StateFile(path) as third:
        assert third.read() == NO_STATE


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "{}",
        json.dumps({"format": "rlscope-watch", "version": 2, "run": {}, "receivers": {}, "worst": None}),
        json.dumps({"format": "rlscope-watch", "version": 1, "run": {}, "receivers": {}, "worst": "loud"}),
        json.dumps({"format": "rlscope-watch", "version": 1, "run": {}, "receivers": {"oncall": {}}, "worst": None}),
    ],
)
def test_a_file_that_is_no_state_is_refused_and_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(RlscopeError, match="Delete it to start again"):
        read_state(path)
    assert path.read_text() == text


SILENT = replace(FACTS, silent_s={"sampler-1": 75.0})
STALL = {
    "waiting_worker_id": "trainer-0",
    "waits_for": "samples",
    "waited_s": 94.0,
    "worker_id": "sampler-2",
    "doing": "applying version 41",
    "stuck_s": 96.0,
    "moving_workers": 0,
}
UNKNOWN = (
    "running_per_engine", "waiting_requests", "kv_used_ratio", "staleness", "queue_depth_samples",
    "trained_tokens_per_s", "last_step_end_ns", "verdict", "newest_ns",
)  # fmt: skip
DOWN = ("receiver a: down", "http://a:8000/metrics: timed out")
EMPTY = replace(FACTS, sides=(), **dict.fromkeys(UNKNOWN))


def lines(*views: LiveView, troubles: Sequence[tuple[str, ...]] = (), each_look: bool = False) -> list[str]:
    from rlscope.reports.text.watch import Lines

    written: list[str] = []
    shown = Lines(written.append, each_look=each_look)
    for number, each in enumerate(views):
        shown.show(replace(each, troubles=troubles[number] if number < len(troubles) else ()))
    return [line.removeprefix("2026-01-01 12:00:") for line in written]


def test_a_stall_is_said_once_and_when_it_is_over() -> None:
    said = "trainer-0 has waited 1 min 34 s for samples; sampler-2 has been applying version 41 for 1 min 36 s. "
    stalled = view(facts=replace(FACTS, stall=STALL))
    assert [line for line in lines(stalled, stalled, view()) if said in line] == [
        f"00 UTC note: {said}Other workers that make progress: 0",
        f"00 UTC cleared: {said}Other workers that make progress: 0",
    ]


def test_lines_say_what_changed_and_once_a_minute_where_the_run_stands() -> None:
    status = (
        "verdict Bottleneck: samplers. Trainers wait for samples 38.0% of the time, over the last 1 min 30 s; "
        "steps 120, the last ended 3 s before the newest data; trained 5.3k tokens/s; "
        "staleness mean 1.25, p95 4, max 6 versions; batch 41.5 running, 3 waiting per engine; KV cache 50.0%; "
        "queue 12 samples; newest data {ago} ago; "
        "1 trainer, 4 GPUs: training 62.0%, waiting for samples 38.0%; "
        "2 samplers, 2 GPUs: decoding 75.0%, idle 25.0%"
    )
    assert lines(
        view(facts=None, evaluated_ns=None),
        view(seconds=1),
        view(alert("silent", -2), seconds=2, facts=SILENT),
        view(alert("silent", -2), seconds=3, problems=("3 files are damaged",)),
        view(alert("silent", -2, 4), seconds=4, problems=("14 files are damaged",)),
        view(seconds=60.9),
        view(seconds=61, ended=True),
        troubles=[(), (), (), (DOWN[0],), DOWN, (DOWN[1],), (DOWN[1],)],
    ) == [
        "00 UTC waiting for the run to start",
        "01 UTC run monday",
        "01 UTC " + status.format(ago="2 s"),
        "02 UTC FIRING warning silent: silent since long (for 4 s)",
        "02 UTC note: no data from sampler-1 for 1 min 15 s",
        "03 UTC note: 3 files are damaged",
        "03 UTC note: receiver a: down",
        "03 UTC cleared: no data from sampler-1 for 1 min 15 s",
        "04 UTC resolved warning silent: silent since long (for 6 s)",
        "04 UTC note: http://a:8000/metrics: timed out",
        "2026-01-01 12:01:00 UTC cleared: receiver a: down",
        "2026-01-01 12:01:01 UTC run monday has ended",
        "2026-01-01 12:01:01 UTC " + status.format(ago="1 min 2 s"),
    ]


def test_lines_can_say_at_each_look_where_the_run_stands() -> None:
    said = lines(*(view(seconds=seconds) for seconds in (0, 5, 10, 10)), each_look=True)
    assert ["newest data" in line for line in said] == [False, True, True, True]


def test_a_slow_engine_is_named() -> None:
    slow = view(facts=replace(FACTS, straggler=Straggler("sampler-3", 429.0, 920.0, 50.0)))
    words = "sampler-3 generates 429 tokens/s, the median engine 920 tokens/s"
    assert f"; slow engine {words}; newest data" in lines(slow)[-1]
    assert words in drawn(slow)


def test_a_verdict_that_is_not_known_says_why() -> None:
    unknown = Verdict("unknown", (), "the run has 2 training steps", NOON_NS, NOON_NS + S, ())
    (line,) = [line for line in lines(view(facts=replace(FACTS, verdict=unknown))) if ";" in line]
    assert "verdict No verdict: the run has 2 training steps; steps" in line


def test_a_full_judge_is_named_and_the_samplers_are_no_bottleneck() -> None:
    judge = Verdict(
        "samplers", (Loss("samplers", 38.0, 0.38),), None, NOON_NS - 90 * S, NOON_NS, waits_for_auxiliary=True
    )
    (line,) = [line for line in lines(view(facts=replace(FACTS, verdict=judge))) if ";" in line]
    said = "Trainers wait for samples 38.0% of the time, while the judges or reward models are nearly always busy"
    assert f"verdict Trainers wait for samples. {said}, over the last 1 min 30 s; steps" in line


def test_a_run_that_only_evaluates_is_not_said_to_write_checkpoints() -> None:
    evaluates = Verdict("checkpoints", (Loss("checkpoints", 30.0, 0.3),), None, NOON_NS - 90 * S, NOON_NS)
    sides = (SideState("sampler", 2, 2, {"checkpoint": 1.0}), SideState("trainer", 1, 4, {"train": 0.7, "eval": 0.3}))
    (line,) = [line for line in lines(view(facts=replace(FACTS, verdict=evaluates, sides=sides))) if ";" in line]
    assert "verdict Bottleneck: evaluation. Trainers spend 30.0% of their time on evaluation, over" in line


def test_what_is_not_known_is_said_and_control_characters_stay_out() -> None:
    assert lines(view(facts=replace(EMPTY, run_id="mon\x1b[2J\nday"), problems=("a\rb",))) == [
        "00 UTC run mon�[2J�day",
        "00 UTC note: a�b",
        "00 UTC verdict no data; steps 120; trained no data; staleness no data; batch no data; KV cache no data; "
        "queue no data; newest data none",
    ]


def drawn(shown: LiveView, width: int = 100) -> str:
    from io import StringIO

    from rich.console import Console

    from rlscope.reports.terminal import on_terminal
    from rlscope.reports.text.watch import screen

    console = Console(file=StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(on_terminal(screen(shown), width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_screen_shows_sides_batches_ages_queue_silence_troubles_and_what_fires_gravest_first() -> None:
    firing = (alert("slow"), alert("dead", severity="critical"))
    text = drawn(view(*firing, facts=SILENT, problems=("a file is damaged",), troubles=("receiver a: down",)))
    silence = "no data from sampler-1 for 1 min 15 s"
    for words in ("run monday", "1 trainer, 4 GPUs", "waiting for samples", "p95 4", silence, "receiver a: down"):
        assert words in text
    assert text.index("dead") < text.index("slow") < text.index("a file is damaged")


def test_the_screen_says_that_nothing_fires_that_nothing_is_known_and_that_nothing_has_begun() -> None:
    assert "no alerts" in drawn(view(facts=EMPTY))
    assert "no data" in drawn(view(facts=EMPTY), width=60)
    assert drawn(view(facts=None, evaluated_ns=None)).startswith("waiting for the run to start")
    assert "\x1b" not in drawn(view(alert(annotations={"summary": "\x1b[2J"})))
