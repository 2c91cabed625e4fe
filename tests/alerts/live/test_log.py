"""A growing log is followed like a run folder, and its silence is told."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlscope.alerts.config import built_in_rules
from rlscope.alerts.live.facts import LiveView
from rlscope.alerts.live.log import LiveLog
from rlscope.alerts.live.watch import WatchClock, watch_run
from rlscope.importers.join import resolve
from rlscope.importers.target import NO_OPTIONS
from rlscope.pipeline import analyze
from rlscope.reports.text.verdict import label
from rlscope.reports.text.watch import fact_rows
from tests.importers.test_restarts import START_S, record_that_begins_step, step_lines, steps, vllm_lines
from tests.trace_folder import engine_run

WRITTEN = Path("sample_traces/imported/verl_console.log").resolve()
SAMPLES = Path("tests/importers/fixtures").resolve()
TOTAL = "'total_training_steps': 60"
TEXT = WRITTEN.read_text(encoding="utf-8")
LINES = TEXT.replace(TOTAL, "'total_training_steps': 1000").splitlines(keepends=True)
"""The settings, and the first 60 steps of 1,000, of 0.55 s each; no dates."""
ENGINE = (
    "INFO 01-01 00:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
    "447.0 tokens/s, Running: 200 reqs, Waiting: 0 reqs, GPU KV cache usage: 49.2%"
)
S = 10**9
START_NS = 1_800_000_000 * S


class Growing:
    """A log that grows by whole texts, and a watch of it on a clock of its own."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.path = folder / "run.log"
        self.now_ns = START_NS
        self.watch = LiveLog(self.path, built_in_rules(), replace(NO_OPTIONS, **options))

    def write(self, text: str, *, mode: str = "a") -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(text)
        os.utime(self.path, ns=(self.now_ns, self.now_ns))

    def look(self, after_s: float = 0.0) -> LiveView:
        self.now_ns += round(after_s * S)
        return self.watch.poll(self.now_ns)

    def see(self, text: str, *, mode: str = "a") -> LiveView:
        """A look at the log after it has grown by a text."""
        self.write(text, mode=mode)
        return self.look()


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path)


@pytest.mark.parametrize("path", [WRITTEN, SAMPLES / "verl/metrics.jsonl", SAMPLES / "slime/job.log"])
def test_a_log_that_has_grown_to_its_end_has_the_verdict_of_its_analysis(growing: Growing, path: Path):
    lines, steps = path.read_text(encoding="utf-8").splitlines(keepends=True), list[int]()
    for at in range(0, len(lines), len(lines) // 3):
        growing.write("".join(lines[at : at + len(lines) // 3]))
        view = growing.look(5.0)
        steps.append(view.facts.steps if view.facts else 0)
    imported = resolve(growing.path)
    said = label(analyze(imported.path, also_ask=()))
    assert dict(fact_rows(view.facts, growing.now_ns))["verdict"].startswith(said)
    assert steps == sorted(steps) and steps[-1] > steps[0]


def verl(step: int, gen_s: float, saving_s: float = 0.0, update: str = "") -> str:
    """One of verl's steps, with 60 s of training."""
    phases = {"gen": gen_s, "update_actor": 60.0, "save_checkpoint": saving_s, "step": gen_s + 60.0 + saving_s}
    return f"step:{step} - " + " - ".join(f"timing_s/{name}:{each}" for name, each in phases.items()) + update + "\n"


@pytest.mark.parametrize(("counted", "tokens_per_s"), [(" - perf/total_num_tokens:6000", 60.0), ("", None)])
def test_a_log_without_samples_has_the_tokens_that_its_trainer_counts(
    growing: Growing, counted: str, tokens_per_s: float | None
):
    view = growing.see("".join(verl(step, 40.0, update=counted) for step in range(1, 21)))
    assert view.facts is not None and view.facts.trained_tokens_per_s == tokens_per_s


ASYNC = " - fully_async/count/total:1.0"
FRESH = " - training/off_policy/trajectory_staleness/mean:0.0"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # The last two steps, which fill five minutes, save for a third of their time; all together hardly ever.
        ([*(verl(step, 80.0) for step in range(1, 16)), verl(16, 80.0, 60.0)], "Longest phase: generation"),
        # The last two hardly wait, so that samplers are mostly in no state there.
        (
            [verl(step, 80.0 if step < 15 else 20.0, update=ASYNC) for step in range(1, 17)],
            "Trainers wait for samples",
        ),
        # verl reports that every step trained on samples of its own version: generation was what it waited for.
        ([verl(step, 80.0, update=ASYNC + FRESH) for step in range(1, 17)], "Bottleneck: samplers"),
    ],
)  # fmt: skip
def test_a_log_of_long_steps_is_judged_by_ten_of_them_in_the_words_of_its_analysis(
    growing: Growing, lines: list[str], said: str
):
    growing.write("".join(lines))
    imported = resolve(growing.path)
    assert label(analyze(imported.path, also_ask=())) == said
    growing.look(5.0)
    for later_s in (5.0, 1_000.0):
        verdict = dict(fact_rows(growing.look(later_s).facts, growing.now_ns))["verdict"]
        assert verdict.startswith(f"{said}. ")


def test_until_a_log_can_be_read_the_watch_says_why_not(growing: Growing):
    assert growing.look().problems == (f"{growing.path}: No such file or directory",)
    (said,) = growing.see("hello\n").problems
    assert "found no run; expected a run folder, or a log or metrics file of" in said
    view = growing.see("".join(LINES))
    assert view.facts is not None and not view.problems
    growing.path.unlink()
    assert growing.look().problems[0] == f"{growing.path}: No such file or directory"
    assert growing.look().facts.steps == 60


def test_a_last_line_that_is_half_written_waits_for_its_rest(growing: Growing):
    whole, half = "".join(LINES[:30]), LINES[30][: len(LINES[30]) // 2]
    growing.write(whole)
    steps = growing.look().facts.steps
    growing.write(half)
    assert growing.look().facts.steps == steps + 1
    growing.write(LINES[30][len(half) :])
    assert growing.look().facts.steps == steps + 1


def test_a_log_that_stands_still_for_half_a_minute_is_told_and_its_alarms_fire(growing: Growing):
    growing.see("".join(LINES))
    said = "run.log has not grown for 30 s, after 60 steps of 553 ms on average"
    for after_s, is_told in ((29.999, False), (0.001, True)):
        view = growing.look(after_s)
        assert (said in view.problems) is is_told
        assert ("steps_stalled" in {each.rule for each in view.alerts}) is is_told
    assert said not in growing.see(LINES[-1].replace("step:60", "step:61")).problems
    # One that never grows again has ended after ten minutes.
    assert [growing.look(after_s).ended for after_s in (599.0, 2.0)] == [False, True]


def test_a_log_that_stands_still_is_told_with_the_last_line_of_each_file(tmp_path: Path):
    engine = tmp_path / "engine.log"
    engine.write_text(f"\x1b[32m{ENGINE}\x1b[0m\n\n")
    growing = Growing(tmp_path, engine_logs=(engine,))
    growing.see("".join(LINES) + "\x1b[36m(TaskRunner pid=7)\x1b[0m validation begins\r\n")
    assert not any("the last line" in each for each in growing.look(5.0).problems)
    assert [each for each in growing.look(60.0).problems if "the last line" in each] == [
        "the last line of run.log: validation begins",
        f"the last line of engine.log: {ENGINE[:160]}",
    ]


def test_a_run_that_was_down_has_the_mean_step_and_the_engines_of_a_run_that_was_not(tmp_path: Path):
    """Steps of 10 s: it fell back from step 40 to its checkpoint after step 35, and its engine was started again."""
    logs = tuple(tmp_path / f"engine-{start}.log" for start in (1, 2))
    growing = Growing(tmp_path, engine_logs=logs, gpus={"trainer": 2, "sampler": 4}, utc_offset_s=0)
    logs[0].write_text(vllm_lines(range(10, 401, 10)))
    growing.now_ns = (START_S + 400) * S
    before = growing.see(step_lines(*steps(1, 40, 0))).facts
    logs[1].write_text(vllm_lines(range(1_800, 2_201, 10)))
    growing.now_ns = (START_S + 2_200) * S
    after = growing.see(step_lines(*steps(36, 75, 1_800))).facts
    assert before.step_ns == after.step_ns == 10 * S
    sides = [[(side.role, side.workers, side.gpu_count) for side in each.sides] for each in (before, after)]
    assert sides == [[("sampler", 1, 4), ("trainer", 1, 2)]] * 2
    assert any("after 75 steps of 10 s on average" in each for each in growing.look(30.0).problems)


def test_a_log_of_long_steps_stands_still_after_three_of_them(growing: Growing):
    growing.write(
        "".join(LINES).replace("timing_s/step:0.", "timing_s/step:20.").replace("timing_s/gen:0.", "timing_s/gen:19.")
    )
    facts = growing.look().facts
    step_s = facts.step_ns / S
    assert step_s > 10.0
    assert not any("has not grown" in each for each in growing.look(3 * step_s - 0.001).problems)
    assert any("has not grown" in each for each in growing.look(0.002).problems)


def test_a_watch_that_is_started_again_goes_on_and_repeats_no_alert(growing: Growing):
    growing.see("".join(LINES))
    first = growing.look(60.0)
    assert first.evaluated_ns is not None and "steps_stalled" in {each.rule for each in first.alerts}
    growing.watch = LiveLog(growing.path, built_in_rules(), NO_OPTIONS, growing.watch.saved())
    # Nothing is evaluated twice, and what fires goes on firing since the same tick.
    second = growing.look()
    assert second.evaluated_ns == first.evaluated_ns
    started = [{each.rule: each.start_ns for each in view.alerts if each.end_ns is None} for view in (first, second)]
    assert started[0] == started[1]


@pytest.mark.parametrize("begins", ["(main pid=7) another run\n", ""])
def test_a_log_of_the_same_name_is_not_taken_for_the_run_that_was_watched_before(growing: Growing, begins: str):
    """It is longer than the first by now. If it begins with the same lines, it begins at another time."""
    replaced = "run.log was replaced or truncated; it is followed from its new start"
    growing.see("".join(LINES))
    assert replaced in growing.see("".join(LINES[:40]), mode="w").problems
    saved = growing.watch.saved()
    growing.write(begins + "".join(LINES), mode="w")
    if not begins:
        saved = replace(saved, origin_ns=saved.origin_ns - 90 * 86_400 * S, log_head=None)
    growing.watch = LiveLog(growing.path, built_in_rules(), NO_OPTIONS, saved)
    view = growing.look(90 * 86_400)
    assert replaced in view.problems
    assert view.facts.steps == 60
    # Its start, once chosen, stays.
    growing.write(LINES[-1].replace("step:60", "step:61"))
    assert growing.look(5.0).facts.started_ns == view.facts.started_ns


@pytest.mark.parametrize(("announced", "has_ended"), [(60, True), (61, False)])
def test_a_run_ends_with_the_last_step_that_its_log_announces(growing: Growing, announced: int, has_ended: bool):
    assert TOTAL in TEXT
    assert growing.see(TEXT.replace(TOTAL, f"'total_training_steps': {announced}")).ended is has_ended


def test_the_state_of_a_watch_lies_beside_its_log(tmp_path: Path):
    path = tmp_path / "run.log"
    path.write_text("".join(LINES), encoding="utf-8")
    shown = list[LiveView]()
    stop: Iterator[int] = iter([0, 1, 1, 1, 1])
    outcome = watch_run(path, None, None, 0.01, shown.append, lambda: next(stop, 2), print)
    assert not outcome.ended and shown[-1].facts is not None
    assert (tmp_path / "run.log.watch_state.json").is_file()


def test_the_next_file_of_a_run_that_was_started_again_is_followed_with_the_first(tmp_path: Path):
    """TensorBoard's events of 60 steps, cut behind those of step 30."""
    events = (SAMPLES / "verl" / "events.out.tfevents.1").read_bytes()
    cut, steps, now_ns = record_that_begins_step(31, events), list[int](), START_NS

    def write(start: int, part: bytes) -> None:
        path = tmp_path / f"events.out.tfevents.{start}.host"
        path.write_bytes(part)
        os.utime(path, ns=(now_ns, now_ns))

    def sleep(seconds: float) -> None:
        nonlocal now_ns
        now_ns += round(seconds * S)

    def show(view: LiveView) -> None:
        assert view.facts is not None
        steps.append(view.facts.steps)
        if len(steps) == 1:
            write(2, events[cut:])

    write(1, events[:cut])
    clock = WatchClock(now_ns=lambda: now_ns, sleep=sleep)
    watch_run(tmp_path, None, None, 40.0, show, lambda: 2 * (len(steps) > 3), print, clock)
    assert steps[0] == 30 and steps[-1] == 60


def test_while_a_log_stands_still_its_engines_are_read_on_and_are_not_called_silent(tmp_path: Path):
    growing = Growing(tmp_path, engine_logs=(tmp_path / "engines",))
    growing.write("".join(LINES))
    assert "engine-0" not in growing.look().facts.silent_s
    engine_run(tmp_path / "engines", START_NS, -30, 59)
    facts = growing.look(60.0).facts
    assert facts.running_per_engine == 4
    assert facts.silent_s.keys() == {"trainer"}
