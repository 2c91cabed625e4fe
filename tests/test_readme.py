"""README and the documents it leads to keep their word: code runs, and commands, figures and verdicts are real."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import typer.main
from typer.testing import CliRunner

import rlscope
from rlscope.cli import app
from rlscope.model.causes import Bottleneck
from rlscope.pipeline import analyze

ROOT = Path(__file__).parent.parent
README, HOOKS, COMMANDS, ACCURACY = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "instrumentation/README.md", "docs/commands.md", "docs/accuracy.md")
)
(BOTH_SIDES,) = re.findall(r"```python\nimport rlscope_otel\n(.*?)```", HOOKS, re.DOTALL)
TRAINER, _, SAMPLER = BOTH_SIDES.partition("# In each sampler")
SAMPLER = SAMPLER.partition("\n")[2]
(README_LOOP,) = re.findall(r"```python\n(run = .*?)```", README, re.DOTALL)


class Batch(list[Any]):
    tokens = 24


def host() -> dict[str, Any]:
    """What the trainer and the sampler of the snippets have already, for a run of two steps."""
    sample = SimpleNamespace(id="step3/17", queued_ns=None, reward=1.0)
    queue = SimpleNamespace(get_batch=lambda: Batch([sample]), put=lambda response: None, qsize=lambda: 1)
    engine = SimpleNamespace(step=lambda: 1, pause=lambda: None, load=lambda weights: None)
    moments = [(0, 24, 24.0, 24.0)]
    done = {
        "load": lambda: None,
        "train": lambda batch: (0.5, moments),
        "publish": lambda model: 10,
        "save": lambda model: None,
        "range": lambda steps: range(2),
    }
    values = {"version": 0, "step": 0, "model": None, "weights": None, "response": None}
    return {"queue": queue, "engine": engine, **values, **done}


def record(snippet: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder that a snippet has written, started in a working folder."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    for name, value in {"RUN_DIR": "runs/monday", "ROLE": "sampler", "WORKER_ID": "sampler-0"}.items():
        monkeypatch.setenv(f"RLSCOPE_{name}", value)
    names = host()
    exec("import rlscope_otel\n" + snippet, names)
    assert names["run"].stop() and set(names["run"].faults.counts) <= {"gpu"}
    return folder / "runs" / "monday"


@pytest.mark.parametrize("trainer", (TRAINER, README_LOOP), ids=("the whole loop", "the eight lines of README"))
def test_the_snippets_record_both_sides_of_the_queue(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(SAMPLER, tmp_path, monkeypatch)
    analysis = analyze(record(trainer, tmp_path, monkeypatch))
    states = {(state.role, state.state, state.reason) for state in analysis.ledger.states}
    assert {("trainer", "waiting_for_samples", "samples"), ("sampler", "no_requests", "backpressure")} <= states
    assert analysis.answers["delivery_outcomes"]["outcome"].to_list() == ["trained"]
    assert analysis.answers["queue_depth"]["queue"].to_list() == ["samples"]


def test_folders_of_separate_nodes_can_be_copied_into_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = record(SAMPLER, tmp_path / "one", monkeypatch)
    trained = record(TRAINER, tmp_path / "other", monkeypatch)
    both = tmp_path / "both"
    for folder in (sampled, trained):  # The trainer's run.json is the one that stays.
        shutil.copytree(folder, both, dirs_exist_ok=True)
    analysis = analyze(both)
    assert {state.role for state in analysis.ledger.states} == {"sampler", "trainer"}
    assert not analysis.data_quality.skipped_files and not analysis.data_quality.workers_without_end
    assert "max_staleness" in json.loads((both / "run.json").read_text())["config"]


def test_the_quoted_card_is_that_of_the_log_without_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    card = CliRunner().invoke(app, ["analyze", str(ROOT / "sample_traces/imported/verl_console.log"), "--no-page"])
    printed = [line.strip(" │") for line in card.output.splitlines()]
    (quoted,) = re.findall(r"```\n(Trainers wait for samples\n.*?)```", README, re.DOTALL)
    lines = [line.strip() for line in quoted.splitlines() if line]
    assert len(lines) >= 6
    assert lines[0] in printed[0] and lines[1:] == [line for line in printed[1:] if line][: len(lines) - 1]


def test_the_table_of_verdicts_has_every_verdict() -> None:
    named = re.findall(r"^\| `(\w+)` \|", COMMANDS.partition("## Verdicts")[2], re.MULTILINE)
    assert sorted(named) == sorted(get_args(Bottleneck))


PAGES = [ROOT / "README.md", ROOT / "instrumentation" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_and_every_test_that_it_names_is_a_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = [page.parent / target for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    named = [ROOT / path for path in re.findall(r"`((?:instrumentation/)?tests/[a-z_/]+\.py)`", text)]
    assert [path for path in linked + named if not path.exists()] == []


def calls_in(page: Path) -> list[str]:
    """The calls of `rlscope` on a page, in its blocks of code and within its sentences."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    return re.findall(r"^rlscope [^#\n]*", blocks, re.MULTILINE) + re.findall(r"`(rlscope [^`]+)`", text)


@pytest.mark.parametrize("page", [page for page in PAGES if calls_in(page)], ids=lambda page: page.name)
def test_every_command_and_option_that_a_page_names_exists(page: Path) -> None:
    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, arguments in re.findall(r"rlscope ([a-z-]+)([^|&\n]*)", "\n".join(calls_in(page))):
        known = {"--help"}.union(*(parameter.opts for parameter in commands[name].params))
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", arguments)) <= known, name


def test_every_command_is_documented() -> None:
    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    documented = set(re.findall(r"rlscope ([a-z-]+)", COMMANDS))
    assert {name for name, command in commands.items() if not command.hidden} <= documented


@pytest.mark.parametrize("text", (README, COMMANDS), ids=("README", "commands"))
def test_every_name_of_the_python_api_exists(text: str) -> None:
    (code,) = re.findall(r"```python\nimport rlscope\n(.*?)```", text, re.DOTALL)
    called, asked = set(re.findall(r"rlscope\.(\w+)\(", code)), set(re.findall(r"\b(?:a|analysis)\.(\w+)", code))
    assert called and called <= set(rlscope.__all__)
    assert asked and asked <= set(dir(rlscope.Analysis))


def figures(name: str) -> str:
    return (ROOT / "benchmarks" / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ("pipeline_overhead", "vllm_overhead", "trl_overhead"))
def test_the_overhead_is_what_the_benchmarks_measured(name: str) -> None:
    quoted = {line.split("|")[2].strip() for line in ACCURACY.splitlines() if f"`benchmarks/{name}.txt`" in line}
    shares = re.findall(r"([\d.]+) of the (?:pass|step)", figures(name))
    assert quoted == {f"{float(share):.1%}" for share in shares} != set()


def test_the_largest_run_and_its_cost_are_what_the_benchmark_measured() -> None:
    measured, words = figures("analysis_speed"), " ".join(ACCURACY.split())
    samples, steps = re.findall(r"([\d,]+) (?:samples|engine_steps)", measured)
    assert f"{samples} samples and {steps} engine steps" in words
    cpu_s, page_s = (
        re.search(rf"^{what} +cpu_s +([\d.]+)", measured, re.MULTILINE) for what in ("analysis", "drawing the page")
    )
    peak_gb = re.search(r"^and page +peak GB +([\d.]+)", measured, re.MULTILINE)
    assert cpu_s and page_s and peak_gb
    memory = f"{float(peak_gb[1]):.1f} GB of memory"
    assert f"{float(cpu_s[1]):.1f} s of CPU time and {memory}, and {float(page_s[1]):.1f} s more" in words
    (disk_mb,) = re.findall(r"([\d.]+) MB of engine steps per GPU-hour", figures("capture_cost"))
    assert f"{disk_mb} MB on disk per GPU-hour" in words


def test_the_errors_of_predictions_are_what_the_benchmarks_measured() -> None:
    ((pairs, error, covered),) = re.findall(
        r"(\d+) transfers: median \|error\| ([\d.]+%).*in the 90 ?% interval (\d+%)", figures("real_transfer")
    )
    assert f", {pairs} pairs | {error} | {covered} |" in ACCURACY
    ((median, worst, inside),) = re.findall(
        r"every other layout, noisy +\d+ +([\d.]+)% +[\d.]+% +([\d.]+)% +\S+% +(\d+)\.", figures("prediction_error")
    )
    assert f"| {float(median):.1f}%; one in ten is off by more than {float(worst):.1f}% |" in ACCURACY
    words = " ".join(README.split())
    assert f"the median error is {error}, and {covered} of the 90% intervals" in words
    assert f"For an independent simulator's systems: {float(median):.1f}% and {inside}%." in words
