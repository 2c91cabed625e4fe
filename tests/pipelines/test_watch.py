"""`rlscope watch` beside the real pipeline: begun before it, ended by its end."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlscope.alerts.config import load_rules
from rlscope.pipeline import check
from tests.alerts.notify.listener import Listener, listening
from tests.pipelines.pipeline_process import REPOSITORY, TIME_LIMIT_S, finish, start

pytestmark = pytest.mark.pipelines

# Samplers that are six times slower than they could be leave the trainer waiting most of the time.
STARVED = ("--steps", "1000000", "--slow-sampler", "6")
RULES = """
interval = "1s"
[[rules]]
name = "must_fire"
kind = "alarm"
metric = "idle.trainer_ratio"
above = 0.2
window = "3s"
for = "1s"
keep_firing_for = "1h"
labels = { severity = "critical" }
annotations = { summary = "the trainer stands still {value}" }
[[rules]]
name = "must_not"
kind = "alarm"
metric = "staleness.tokens.max"
above = 1000
window = "3s"
labels = { severity = "critical" }
[[receivers]]
name = "hook"
kind = "webhook"
interval = "0s"
"""


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as started:
        yield started


@pytest.fixture
def begin() -> Iterator[Callable[["subprocess.Popen[str]"], "subprocess.Popen[str]"]]:
    """Processes that do not outlive the test; the pipeline ends its workers when it is interrupted."""
    begun: list[subprocess.Popen[str]] = []
    yield lambda process: begun.append(process) or process
    for process in begun:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIME_LIMIT_S)


def watch(run_dir: Path, rules: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from rlscope.cli import main; main()", "watch", str(run_dir)]
    return subprocess.Popen(
        [*command, "--rules", str(rules), "--interval", "200ms", "--plain"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_watch_tells_what_must_fire_once_and_the_end_of_the_run(
    tmp_path: Path, listener: Listener, begin: Callable[["subprocess.Popen[str]"], "subprocess.Popen[str]"]
) -> None:
    run_dir, rules = tmp_path / "run", tmp_path / "rules.toml"
    rules.write_text(f'{RULES}url = "{listener.url}"\n')
    beside = begin(watch(run_dir, rules))
    assert beside.stdout is not None
    assert beside.stdout.readline().endswith("waiting for the run to start\n")
    pipeline = begin(start(run_dir, *STARVED))
    assert any("FIRING critical must_fire" in line for line in beside.stdout)
    pipeline.send_signal(signal.SIGINT)
    assert finish(run_dir, pipeline).exit_status == 0
    rest, stderr = beside.communicate(timeout=TIME_LIMIT_S)
    assert "has ended" in rest
    assert (beside.returncode, stderr) == (3, "")
    told = [(each["labels"]["alertname"], each["status"]) for body in listener.bodies for each in body["alerts"]]
    assert told == [("must_fire", "firing"), ("must_fire", "resolved")]
    assert [alert.rule for alert in check(run_dir, load_rules(rules)).alerts] == ["must_fire"]
