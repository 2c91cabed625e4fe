"""Each kind of receiver, for real: over loopback, or as a process."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from rlscope.alerts.notify import senders
from rlscope.alerts.notify.message import DeliveryError, lines
from rlscope.alerts.notify.senders import SENDERS, webhook_payload
from rlscope.alerts.receiver import ReceiverKind
from tests.alerts.notify.given import alert, message, receiver
from tests.alerts.notify.listener import Listener

FIRING = message(alert())


def refusal(send, to) -> str:
    with pytest.raises(DeliveryError) as caught:
        send(to, FIRING)
    return str(caught.value)


@pytest.mark.parametrize(
    ("user", "token_env", "authorization"),
    [("", None, None), ("", "THE_TOKEN", "Bearer hush"), ("me:p%40ss@", None, "Basic bWU6cEBzcw==")],
)
def test_a_webhook_is_posted_the_payload_and_its_secret_in_a_header(
    user: str, token_env: str | None, authorization: str | None, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", "hush\n")
    url = listener.url.replace("//", f"//{user}") + "/hook"
    senders.send_to_webhook(receiver(url=url, token_env=token_env), FIRING)
    (request,) = listener.requests
    assert (request["path"], request["body"]) == ("/hook", webhook_payload(FIRING))
    assert request["headers"]["Content-Type"] == "application/json"
    assert request["headers"].get("Authorization") == authorization


def test_alertmanager_is_posted_to_its_api_and_leases_what_fires(listener: Listener) -> None:
    both = message(alert(), alert(start_s=1.5, end_s=30))
    senders.send_to_alertmanager(receiver("alertmanager", listener.url + "/prefix/", repeat_s=60.0), both)
    (request,) = listener.requests
    assert request["path"] == "/prefix/api/v2/alerts"
    assert [(each["startsAt"], each["endsAt"]) for each in request["body"]] == [
        ("2026-01-01T12:00:00.000000000Z", "2026-01-01T12:05:00.000000000Z"),
        ("2026-01-01T12:00:01.500000000Z", "2026-01-01T12:00:30.000000000Z"),
    ]


def needs_apprise(test: Callable[..., None]) -> Callable[..., None]:
    is_missing = pytest.mark.skipif(not senders.is_installed(), reason="needs the extra rlscope[apprise]")
    return pytest.mark.filterwarnings("ignore::DeprecationWarning")(is_missing(test))


SLACK = "https://hooks.slack.com/services/T0HUSH/B0HUSH/hushhushhush"


class Slack:
    """Stands in for hooks.slack.com below apprise: it keeps what would be sent."""

    def __init__(self, status_code: int = 200, content: bytes = b"ok") -> None:
        self.answer = SimpleNamespace(status_code=status_code, content=content, headers={})
        self.requests: list[tuple[str, str, dict[str, Any]]] = []

    def __call__(self, method: str, url: str, **options: Any) -> SimpleNamespace:
        self.requests.append((method, url, options))
        return self.answer


@needs_apprise
def test_slack_gets_plain_text_in_which_a_run_can_neither_mention_nor_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("requests.request", slack := Slack())
    hostile = alert("<!here>", annotations={"summary": "<!channel> <http://evil|ok> & more"})
    senders.send_through_apprise(receiver("apprise", SLACK), message(hostile, alert("stale", 0, 90)))
    ((method, url, options),) = slack.requests
    assert (method, url) == ("post", SLACK)
    document = json.loads(options["data"])
    assert not document["mrkdwn"]
    (attached,) = document["attachments"]
    assert attached["title"] == "[FIRING 1] &lt;!here&gt;, stale, run monday"
    assert attached["text"] == (
        "warning: &lt;!channel&gt; &lt;http://evil|ok&gt; &amp; more (since 2026-01-01 12:00:00 UTC)\n"
        "resolved: stale since long (since 2026-01-01 12:00:00 UTC, for 1 min 30 s)"
    )


def test_a_chat_is_spared_the_hundredth_alert() -> None:
    shown = lines(message(*(alert(f"rule-{number}") for number in range(25))))
    assert (len(shown), shown[-1]) == (21, "and 5 alerts more")


def test_apprise_is_named_by_its_extra_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    words = refusal(senders.send_through_apprise, receiver("apprise", SLACK))
    assert words == "apprise is not installed: pip install 'rlscope[apprise]'"


def test_every_kind_of_receiver_has_a_sender() -> None:
    assert SENDERS.keys() == set(get_args(ReceiverKind))


@pytest.mark.parametrize("status", [500, 404, 302])
def test_an_answer_that_is_no_success_is_a_failure(listener: Listener, status: int) -> None:
    listener.answers = [status]
    listener.headers = {"Location": "/elsewhere"}
    assert refusal(senders.send_to_webhook, receiver(url=listener.url)) == f"it answered HTTP {status}"
    assert len(listener.requests) == 1


def test_a_receiver_that_is_down_slow_or_nowhere_is_a_failure_without_its_name(listener: Listener) -> None:
    nowhere = refusal(senders.send_to_webhook, receiver(url="http://hush.invalid/hush"))
    assert nowhere.startswith("it cannot be reached") and "hush" not in nowhere
    assert refusal(senders.send_to_webhook, receiver(url="http://127.0.0.1:1")) == "the connection was refused"
    listener.hold = threading.Event()
    assert refusal(senders.send_to_webhook, receiver(url=listener.url, timeout_s=0.1)) == "it did not answer in time"


@pytest.mark.parametrize(
    "url",
    ["hush", "file:///etc/hush", "http://", "http://h:hush/", "http://h/hu sh", "http://h/\thush", "http://[hush/", ""],
)
def test_an_address_that_cannot_be_posted_to_is_not_quoted(url: str) -> None:
    assert refusal(senders.send_to_webhook, receiver(url=url)) == "its URL is not an http or https URL"


def test_a_token_that_would_break_the_headers_is_not_quoted(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_TOKEN", "hush\r\nX: 1")
    words = refusal(senders.send_to_webhook, receiver(url=listener.url, token_env="THE_TOKEN"))
    assert words == "its URL or its token cannot be sent over HTTP"


def python(script: str, *arguments: str) -> dict[str, object]:
    return {"command": [sys.executable, "-c", script, *arguments]}


def test_a_command_reads_the_payload(tmp_path: Path) -> None:
    script = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read()); print('noise')"
    senders.run_command(receiver("command", **python(script, str(tmp_path / "out"))), FIRING)
    assert '"fingerprint"' in (tmp_path / "out").read_text()


def test_a_command_that_fails_is_missing_or_hangs_is_a_failure_and_its_output_goes_nowhere(capfd) -> None:
    failing = receiver("command", **python("import os, sys; os.write(2, b'hush'); sys.exit(7)"))
    assert refusal(senders.run_command, failing) == "the command ended with status 7"
    missing = receiver("command", command=["/no/such/command", "hush"])
    assert refusal(senders.run_command, missing) == "the command cannot be started (No such file or directory)"
    hanging = receiver("command", timeout_s=0.2, **python("import time; time.sleep(60)"))
    assert refusal(senders.run_command, hanging) == "the command did not end in time"
    assert capfd.readouterr() == ("", "")


@needs_apprise
def test_apprise_delivers_to_a_service_that_it_knows_and_says_nothing_of_its_url(listener: Listener, capfd) -> None:
    url = listener.url.replace("http://", "json://")
    senders.send_through_apprise(receiver("apprise", url), FIRING)
    assert listener.bodies[0]["title"] == "[FIRING 1] starved, run monday"
    assert listener.bodies[0]["type"] == "failure"
    listener.answers = [500]
    assert refusal(senders.send_through_apprise, receiver("apprise", url)) == "apprise could not deliver it"
    assert refusal(senders.send_through_apprise, receiver("apprise", "hush://hush")) == "apprise does not know its URL"
    assert "hush" not in "".join(capfd.readouterr())
