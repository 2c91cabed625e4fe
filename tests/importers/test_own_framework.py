"""A framework that rlscope does not know: by a table, or by the names of its phases."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from rlscope.api import analyze
from rlscope.errors import ArgumentError, ImportFileError
from rlscope.importers.join import import_run
from rlscope.importers.options import import_options
from tests.cli.command import invoke
from tests.importers.filling import asked, ledger_s, spent_s

TABLE = """
name = "my-rl"
title = "My RL"
reported = "rollout/"
staleness = "rollout/lag"
throughput = "rollout/tokens_per_s"

[phases.trainer]
step = "time/total"
order = [
  { kind = "take", metric = "time/sampling" },
  { kind = "train", metric = "time/train_step" },
  { kind = "update", metric = "time/sync" },
]

[placement]
separate_metrics = "rollout/lag"

[columns]
tokens = "batch/tokens"

[actions]
staleness_cap = "rollout.max_lag"
"""
PHASES = "step=time/total,generate=time/sampling,train=time/train_step"
VALUES = {"loss": 0.5, "time/total": 10.0, "time/sampling": 6.0, "time/train_step": 3.5}


def metrics(path: Path, **more: float) -> Path:
    path.write_text("".join(json.dumps({"step": step, **VALUES, **more}) + "\n" for step in range(1, 11)))
    return path


def test_a_table_alone_adds_a_framework(tmp_path: Path) -> None:
    table = tmp_path / "my.toml"
    table.write_text(TABLE)
    file = metrics(tmp_path / "m.jsonl", **{"time/sync": 0.5, "rollout/lag": 1.0, "batch/tokens": 100.0})
    imported = import_run(file, tmp_path / "run", import_options(table=table, gpus="trainer=4,sampler=4"))
    assert (imported.framework, imported.refusal) == ("my-rl", None)
    assert spent_s(tmp_path / "run") == pytest.approx(
        {
            "trainer samples": 60.0,
            "trainer train": 35.0,
            "trainer publish": 5.0,
            "sampler generate": 60.0,
            "sampler apply": 5.0,
        }
    )
    assert asked(tmp_path / "run", "SELECT DISTINCT tokens FROM train_steps") == [(100,)]
    assert asked(tmp_path / "run", "SELECT DISTINCT name, value FROM reported") == [("rollout/lag", 1.0)]
    (staleness,) = analyze(tmp_path / "run", page=False).staleness.reported
    assert (staleness.name, staleness.steps, staleness.max) == ("rollout/lag", 10, 1.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.jsonl", "".join(json.dumps({"step": step, **VALUES}) + "\n" for step in range(1, 11))),
        (
            "pairs.log",
            "".join(
                f"[10:00:{step:02d}] (Driver pid=7) step {step} | loss: 0.5 | time/total: 10.0s | time/sampling: 6 | "
                "time/train_step=3500ms\n"
                for step in range(1, 11)
            ),
        ),
        ("block.log", "".join(f"step: {step}\n" + "".join(f"  {name}: {value}\n" for name, value in VALUES.items())
                              for step in range(1, 11))),
        ("dictionary.log", "".join(f"{ {'step': step, **VALUES} }\n" for step in range(1, 11))),
        ("numbers.log", "".join(f"{step}: {VALUES}\n" for step in range(10))),
        # All ranks print, and steps are counted: the bar's share is no step.
        ("ranks.log", "".join(f"{rank}: {VALUES}\n" for _ in range(10) for rank in (0, 1))),
        ("rank_pairs.log", "".join(f"[rank{rank}]: Step:  5%|#  | {name}: {value}\n" for _ in range(10)
                                   for name, value in VALUES.items() for rank in (0, 1))),
    ],
    ids=lambda each: each if "." in each and len(each) < 20 else "",
)  # fmt: skip
def test_phases_name_the_metrics_of_a_file_or_a_log_without_any_table(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    import_run(tmp_path / name, tmp_path / "run", import_options(phases=PHASES))
    assert spent_s(tmp_path / "run") == pytest.approx({"trainer generate": 60.0, "trainer train": 35.0})
    assert asked(tmp_path / "run", "SELECT step FROM train_steps ORDER BY step") == [(n,) for n in range(1, 11)]


@pytest.mark.parametrize(
    ("line", "generation_s"),
    [
        ("step {} gen 12.5s train 8.5s", 12.5),
        ("step {} gen 12.5 s train 8.5 seconds", 12.5),
        ("step {}: gen: 12.5 sec, train: 8.5s", 12.5),
        ("step {} gen=125ms train=8.5", 0.125),
        ("step {} gen_ms=125 train=8.5", 0.125),
        ("step {} gen_ms=125ms train=8.5", 0.125),
        ("step {} gen_ms=12.5s train=8.5", 12.5),
        ("step {} gen: 12.5 min: 3.0 max: 19.0 train: 8.5", 12.5),
    ],
)
def test_a_printed_duration_is_in_seconds_unless_its_unit_is_ms(tmp_path: Path, line: str, generation_s: float) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(line.format(step) + "\n" for step in range(1, 11)))
    phases = f"generate={'gen_ms' if 'gen_ms' in line else 'gen'},train=train"
    import_run(log, tmp_path / "run", import_options(phases=phases))
    assert spent_s(tmp_path / "run") == pytest.approx({"trainer generate": 10 * generation_s, "trainer train": 85.0})


@pytest.mark.parametrize(
    ("stamp", "utc_offset", "clock", "began"),
    [
        ("2026-01-01T10:{:02d}:05.500Z", None, "wall", "2026-01-01T10:00:45.500"),
        ("[2026-01-01 10:{:02d}:05,500] INFO", None, "local", "2026-01-01T10:00:45.500"),
        ("INFO [trainer] 2026-01-01 12:{:02d}:05.500", "+02:00", "wall", "2026-01-01T10:00:45.500"),
        ("[10:{:02d}:05]", None, "relative", "2000-01-01T00:00:00.000"),
    ],
)
def test_a_printed_step_ended_when_its_line_says(
    tmp_path: Path, stamp: str, utc_offset: str | None, clock: str, began: str
) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(f"{stamp.format(n)} step {n} gen: 12.0s train: 8.0s\n" for n in range(1, 11)))
    options = import_options(phases="generate=gen,train=train", utc_offset=utc_offset)
    imported = import_run(log, tmp_path / "run", options)
    assert imported.clock == clock
    (created_ns,) = asked(tmp_path / "run", "SELECT min(start_ns) FROM activities")[0]
    assert created_ns == datetime.fromisoformat(f"{began}+00:00").timestamp() * 1e9
    # A step each minute; without times, they follow each other.
    ledger = ledger_s(tmp_path / "run")["trainer"]
    assert ledger.get("unattributed", 0.0) == pytest.approx(0.0 if clock == "relative" else 9 * 40.0)


@pytest.mark.parametrize(
    "value", ["2.1 min", "2.1m", "1 min 35 s", "1m35s", "0:01:35.2", "1.5 h", "1500 us", "1500\xb5s", "95.3 hours"]
)
def test_a_duration_in_another_unit_is_refused_rather_than_read_as_seconds(tmp_path: Path, value: str) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(f"step: {step} | gen: {value} | train: 8.5 s\n" for step in range(1, 11)))
    with pytest.raises(ImportFileError, match=r"found no value of `gen`; expected seconds .* `NAME: 12\.3`"):
        import_run(log, tmp_path / "run", import_options(phases="generate=gen,train=train"))


def test_a_phase_without_a_value_is_an_error_unless_the_run_or_the_table_may_lack_it(tmp_path: Path) -> None:
    file, table = metrics(tmp_path / "m.jsonl"), tmp_path / "my.toml"
    table.write_text(TABLE)
    with pytest.raises(ImportFileError, match=r"found no value of `time/all`, `time/sync`; .* omit phases"):
        phases = "step=time/all,generate=time/sampling,train=time/train_step,update=time/sync"
        import_run(file, tmp_path / "run", import_options(phases=phases))
    imported = import_run(file, tmp_path / "other", import_options(table=table))
    assert "No step has `time/sync`, which you named" in imported.notes
    growing = import_run(file, tmp_path / "growing", import_options(phases=f"{PHASES},eval=time/eval"), is_growing=True)
    assert "No step has `time/eval`, which you named" in growing.notes


CONSOLE_TABLE = r"""
name = "my-rl"

[placement]
separate = true

[console]
lead = 'step (?P<step>\d+) metrics '
timer = '(?P<ts>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:begin|(?P<end>done)) (?P<name>\w+)(?: (?P<s>[\d.]+)s)?'
facts = 'results '
step_ends_with = "loss"

[console.timers]
fetch = "samples"
fit = "train"
push = "update"

[console.columns]
loss = "loss"
tokens = "tokens"
"""


def test_a_table_of_timers_adds_a_console(tmp_path: Path) -> None:
    table, log = tmp_path / "my.toml", tmp_path / "run.log"
    table.write_text(CONSOLE_TABLE)
    lines = (
        f"2026-01-01 10:0{step}:00 begin fetch\n2026-01-01 10:0{step}:20 done fetch 20.0s\n"
        f"2026-01-01 10:0{step}:20 begin fit\n2026-01-01 10:0{step}:50 done fit 30.0s\n"
        f"2026-01-01 10:0{step}:50 begin push\n2026-01-01 10:0{step}:55 done push 5.0s\n"
        f"tokens: 1000\nresults {{'loss': 0.5}}\n"
        for step in range(1, 4)
    )
    log.write_text("".join(lines))
    imported = import_run(log, tmp_path / "run", import_options(table=table, gpus="trainer=4,sampler=4"))
    assert (imported.framework, imported.carriers) == ("my-rl", ("console",))
    assert spent_s(tmp_path / "run") == pytest.approx(
        {"trainer samples": 60.0, "trainer train": 90.0, "trainer publish": 15.0, "sampler apply": 15.0}
    )
    assert asked(tmp_path / "run", "SELECT step, loss, tokens FROM train_steps ORDER BY step") == [
        (step, 0.5, 1000) for step in range(1, 4)
    ]


def test_a_table_names_the_text_before_printed_metrics(tmp_path: Path) -> None:
    table, log = tmp_path / "my.toml", tmp_path / "run.log"
    table.write_text(TABLE + "\n[console]\nlead = 'STEP (?P<step>\\d+) METRICS '\n")
    log.write_text("".join(f"STEP {step} METRICS {VALUES}\n" for step in range(1, 11)))
    import_run(log, tmp_path / "run", import_options(table=table))
    assert spent_s(tmp_path / "run") == pytest.approx({"trainer generate": 60.0, "trainer train": 35.0})


def test_a_framework_without_a_title_has_its_name_in_a_refusal(tmp_path: Path) -> None:
    file = metrics(tmp_path / "m.jsonl", **{"time/total": 8.0})
    refusal = import_run(file, tmp_path / "run", import_options(phases=PHASES, gpus="colocated=4")).refusal
    assert refusal is not None and refusal.startswith("the known custom phases exceed the step by 18.8%")


def test_the_blocks_of_a_console_need_neither_a_heading_nor_phases(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        TABLE
        + """
[console]
total = 'whole step: (?P<s>[\\d.]+)s'
numbers = { "time/train_step" = 'trained for ([\\d.]+)' }
"""
    )
    (tmp_path / "a.log").write_text(10 * "whole step: 10.0s\ntrained for 4.0\n")
    imported = import_run(tmp_path / "a.log", tmp_path / "run", import_options(table=tmp_path / "my.toml"))
    assert (imported.framework, imported.carriers) == ("my-rl", ("console",))
    assert spent_s(tmp_path / "run") == {"trainer train": 40.0}


def test_the_commands_that_import_take_a_table_and_phases(tmp_path: Path) -> None:
    file, table = metrics(tmp_path / "m.jsonl"), tmp_path / "my.toml"
    table.write_text(TABLE)
    for arguments in (("analyze", file, "--no-page", "--framework", table), ("doctor", file, "--phases", PHASES)):
        ended = invoke(*arguments)
        assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ('name = "x"\n[phase.t]\n', "phase: found unknown key 'phase'.* Did you mean 'phases'"),
        ('name = "x"\n[phases.t]\norder = [{ kind = "trian", metric = "a" }]\n',
         r"phases\.t\.order\[0\]\.kind: found 'trian'; expected one of 'generate', .* Did you mean 'train'"),
        ('name = "x"\n[columns]\nlos = "a"\n', "columns.los: found unknown key 'los'; .* Did you mean 'loss'"),
        ('name = "x"\n[console]\ntimer = "("\n', r"console\.timer: found '\('; expected a regular expression"),
        ('name = "x"\n', "phases: found no metric of training"),
        ('name = "x"\nconsole.timer = "(?P<ts>a)(?P<name>b)(?P<end>c)"\n', "console.timer: .*groups ts, name, end, s"),
        ('name = "x"\nconsole.timers = { a = "train" }\n', "phases: found no metric of training"),
        ('name = "My RL"\n', "name: found 'My RL'; expected .* such as 'my-framework'"),
    ],
)  # fmt: skip
def test_a_bad_table_is_an_error_that_names_the_key(tmp_path: Path, broken: str, error: str) -> None:
    (tmp_path / "my.toml").write_text(broken)
    with pytest.raises(ImportFileError, match=rf"my\.toml, {error}"):
        import_options(table=tmp_path / "my.toml")


@pytest.mark.parametrize(
    ("phases", "error"),
    [
        ("gnerate=a,train=b", "'gnerate=a'; expected PHASE=METRIC .* Did you mean 'generate'"),
        ("train", "'train'; expected PHASE=METRIC"),
        ("step=a,generate=b", r"expected the metric of training\. Add train=METRIC"),
    ],
)
def test_bad_phases_are_an_error_that_says_what_to_write(phases: str, error: str) -> None:
    with pytest.raises(ArgumentError, match=f"--phases: found {error}|{error}"):
        import_options(phases=phases)


def test_a_table_does_not_go_with_another_answer(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--as and --phases: found several answers"):
        import_options("verl", phases=PHASES)


def test_metrics_that_the_file_lacks_are_named_with_the_nearest_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(ImportFileError, match=r"expected metrics named `time/trainstep`.*mean 'time/train_step'"):
        import_run(metrics(tmp_path / "m.jsonl"), tmp_path / "run", import_options(phases="train=time/trainstep"))


@pytest.mark.parametrize(
    ("line", "durations", "phases"),
    [
        ("step {} gen 12.4s train 8.5s", "gen, train", "generate=gen,train=train"),
        ("Step {} | gen: 12.4 s | train: 8.5 s", "gen, train", "generate=gen,train=train"),
        ("step={} t/train_step=8.5s t/Rollout=9s t/total=18s", "t/Rollout, t/total, t/train_step",
         "step=t/total,generate=t/Rollout,train=t/train_step"),
        ("step={}, a gen: 12.4s, a train: 8.5s", "a gen, a train", "'generate=a gen,train=a train'"),
        ("[step {}] rollout=177s update=216.6s total=393s", "rollout, total, update",
         "step=total,generate=rollout,train=update"),
        ("step={} b_train_wait_time=1s gen=9s samples/sec=3 train_total=8s train_time=8s",
         "b_train_wait_time, gen, train_time, train_total", "generate=gen,train=train_time"),
        ("step={} | t/all : 9.1s | t/gen : 5s | t/switch_to_train : 1s", "t/all, t/gen, t/switch_to_train",
         "step=t/all,generate=t/gen,train=METRIC"),
        ("step={} train/step_time=8.5sec", "train/step_time", "step=train/step_time,generate=METRIC,train=METRIC"),
    ],
)  # fmt: skip
def test_a_log_of_prints_is_refused_with_the_option_to_pass(
    tmp_path: Path, line: str, durations: str, phases: str
) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(line.format(step) + "\n" for step in range(3)))
    found = f"a log of no framework that rlscope knows, with the durations {durations}; .* as in --phases {phases}"
    with pytest.raises(ImportFileError, match=found):
        analyze(log)


def test_a_log_of_an_own_loop_is_refused_with_the_durations_that_three_of_its_lines_print(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    line = "step:{} | reward=0.14 | step_time_seconds=56.3 | train_ms=20 | samples_per_s=4 | t: 1.5s | timeout: 3\n"
    log.write_text("".join(line.format(step) for step in range(3)))
    with pytest.raises(ImportFileError, match="with the durations step_time_seconds, t, train_ms;"):
        analyze(log)
    for others in ("".join(line.format(step) for step in range(2)), 3 * "step 5 took 1.5 s, loaded in 3 s\n"):
        log.write_text(others)
        with pytest.raises(ImportFileError, match="found no run, but lines such as"):
            analyze(log)
