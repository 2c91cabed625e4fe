"""`rlscope watch` as a user runs it: a process, its output, its exit code, and what it leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlscope.alerts.live import watch
from rlscope.alerts.live.watch import watch_run
from rlscope.errors import RlscopeError, RuleError
from tests.alerts.conftest import listener as listener
from tests.alerts.notify.listener import Listener
from tests.cli.command import invoke
from tests.trace_folder import activity, train_row, worker, write_run

IN_OWN_TIME = """
from rlscope.alerts.live import watch
from rlscope.alerts.notify.couriers import Couriers
from rlscope.cli import main

class Clock:
    ns = 3600 * 10**9
    def now_ns(self):
        return self.ns
    def sleep(self, seconds):
        self.ns += round(seconds * 1e9)
    def cpu_s(self):
        return 0.0

watch.WatchClock = Clock
watch.Couriers = lambda receivers, state: Couriers(receivers, state, start=lambda work: work())
main()
"""
"""The command on a clock that counts its naps alone: a slow machine leaves no receiver less time."""
SECOND = 10**9
TIME_LIMIT_S = 120
SECRETS = ("hushchat", "hushslack", "hushuser", "hushpassword", "hushtoken", "hushquery")

RULES = """
interval = "1s"
warm_up_steps = 0
[[rules]]
name = "must_fire"
kind = "alarm"
metric = "idle.trainer_ratio"
above = 0.5
window = "5s"
labels = { severity = "critical" }
annotations = { summary = "idle {value}" }
[[rules]]
name = "must_not"
kind = "alarm"
metric = "idle.trainer_ratio"
above = 1
window = "5s"
labels = { severity = "critical" }
"""
RECEIVERS = """
receivers = [
    { name = "chat", kind = "apprise", url_env = "CHAT_URL" },
    { name = "slack", kind = "apprise", url_env = "SLACK_URL" },
    { name = "hook", kind = "webhook", url_file = "hook_url", token_env = "HOOK_TOKEN", interval = "0s" },
    { name = "gone", kind = "webhook", url_env = "GONE_URL" },
    { name = "broken", kind = "webhook", url_env = "BROKEN_URL", timeout = "1s" },
]
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that ended while its trainer waited."""
    return write_run(
        tmp_path / "run",
        [worker("t0", "trainer", 0, 60 * SECOND)],
        train_steps=[train_row("t0", 0, 10 * SECOND, 1)],
        activities=[activity("t0", 20 * SECOND, 60 * SECOND, "wait", "samples")],
    )


def text_of_files(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_watch_tells_what_fires_and_no_secret_is_in_anything_that_it_writes(
    run_dir: Path, tmp_path: Path, listener: Listener
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RECEIVERS + RULES)
    secret = listener.url.replace("//", "//hushuser:hushpassword@") + "/hook?key=hushquery"
    (tmp_path / "hook_url").write_text(secret)
    listener.headers = {"Location": secret}
    listener.answers = [302, 500]
    environment = {
        "CHAT_URL": f"{listener.url.replace('http', 'json')}/services/hushchat",
        "SLACK_URL": f"{listener.url}/services/T0/B0/hushslack".replace("http", "hush"),
        "HOOK_TOKEN": "hushtoken",
        "GONE_URL": "http://hushuser:hushpassword@127.0.0.1:1/hushslack",
        "BROKEN_URL": "http://hushuser:hushpassword@[hushslack/",
    }
    command = [sys.executable, "-c", IN_OWN_TIME, "watch", run_dir, "--rules", rules, "--fail-on", "critical"]
    ended = subprocess.run(
        [*command, "--interval", "100ms"],
        env=os.environ | environment, capture_output=True, text=True, timeout=TIME_LIMIT_S,
    )  # fmt: skip
    stdout, stderr = ended.stdout, ended.stderr
    assert ended.returncode == 3, stderr
    assert "FIRING critical must_fire: idle 100%" in stdout and "must_not" not in stdout
    assert "receiver gone: the connection was refused" in stdout
    assert "receiver broken: its URL is not an http or https URL" in stdout
    assert "receiver slack: apprise does not know its URL" in stdout
    assert "3 alerts could not be delivered" in stderr
    heard = {request["path"]: request for request in listener.requests}
    assert heard.keys() == {"/services/hushchat", "/hook?key=hushquery"}
    assert heard["/hook?key=hushquery"]["headers"]["Authorization"] == "Bearer hushtoken"
    told = [body for body in listener.bodies if "groupKey" in body]
    assert {(each["labels"]["alertname"], each["status"]) for body in told for each in body["alerts"]} == {
        ("must_fire", "firing"),
        ("must_fire", "resolved"),
    }
    state = run_dir / "watch_state.json"
    assert "must_fire" in state.read_text()
    (tmp_path / "hook_url").unlink()
    everything = stdout + stderr + text_of_files(tmp_path)
    assert [word for word in SECRETS if word in everything] == []


def refusal(run_dir: Path, tmp_path: Path, text: str) -> RlscopeError:
    rules = tmp_path / "rules.toml"
    rules.write_text(text)
    shown: list[object] = []
    with pytest.raises(RlscopeError) as caught:
        watch_run(run_dir, rules, None, 1.0, shown.append, lambda: 0, shown.append)
    assert shown == []
    return caught.value


def test_what_is_wrong_from_the_start_is_said_at_the_start(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = '[[receivers]]\nname = "chat"\nkind = "apprise"\nurl_env = "NOT_SET_ANYWHERE"\n'
    assert "$NOT_SET_ANYWHERE: found nothing" in str(refusal(run_dir, tmp_path, chat))
    wrong = refusal(run_dir, tmp_path, chat.replace("url_env", "url"))
    assert isinstance(wrong, RuleError) and "rules.toml, receivers[0].url: " in str(wrong)
    assert "NOT_SET_ANYWHERE" not in str(wrong)
    monkeypatch.setattr(watch, "is_installed", lambda: False)
    monkeypatch.setenv("NOT_SET_ANYWHERE", "mailto://hush")
    assert "pip install 'rlscope[apprise]'" in str(refusal(run_dir, tmp_path, chat))
    with pytest.raises(RlscopeError, match="no such directory"):
        watch_run(run_dir, None, tmp_path / "gone" / "state.json", 1.0, lambda _: None, lambda: 0, lambda _: None)


@pytest.mark.parametrize("interval", ["0s", "5", "often"])
def test_an_interval_that_is_none_is_a_usage_error(run_dir: Path, interval: str) -> None:
    done = invoke("watch", run_dir, "--interval", interval)
    assert done.exit_code == 2 and "--interval" in done.stderr


def test_rules_that_changed_are_held_from_the_beginning_of_the_run(run_dir: Path, tmp_path: Path) -> None:
    rules, said = tmp_path / "rules.toml", list[str]()
    for text in (RULES, RULES.replace("above = 0.5", "above = 0.6"), RULES.replace("above = 0.5", "above = 0.6")):
        rules.write_text(text)
        outcome = watch_run(run_dir, rules, None, 1.0, lambda _: None, lambda: 0, said.append)
        assert outcome.worst == "critical"
    assert said == ["the rules changed since the last watch; evaluating the run from its start"]
