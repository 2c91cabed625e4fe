"""Sends one message to one receiver: over HTTP, through apprise, or to a command. `SENDERS` has one for each kind.

Every failure is a `DeliveryError` in words of our own: a URL may hold a secret in any of its parts, so no text of a
library that could quote it is passed on. Not covered: when to send and what to do after a failure, which `couriers` and
`outbox` decide.
"""

import base64
import http.client
import importlib.util
import json
import logging
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote, urlsplit

from rlscope.alerts.notify.message import DeliveryError, Message, all_labels, lines, title
from rlscope.alerts.receiver import ALERTMANAGER_REPEAT_S, Receiver, ReceiverKind, is_http
from rlscope.analysis.result import Alert

Send = Callable[[Receiver, Message], None]
"""Raises DeliveryError if the receiver did not accept the message, SecretError if its secret is missing."""
Json = dict[str, object]

_NOT_ENDED: Final = "0001-01-01T00:00:00Z"
_NS_PER_S: Final = 1_000_000_000
_ALERTS_PATH: Final = "/api/v2/alerts"
# Prometheus lets its alerts live for four of its own rounds: three posts in a row may be lost.
_LEASE_ROUNDS: Final = 4

_PASSED_ON: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    # To show a message on a desktop.
    *("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
)
"""Variables of the environment that a command gets."""


def send_to_webhook(receiver: Receiver, message: Message) -> None:
    """Post a message as Alertmanager posts to its webhooks."""
    _post_json(receiver, receiver.address(), webhook_payload(message))


def send_to_alertmanager(receiver: Receiver, message: Message) -> None:
    """Post the alerts of a message to an Alertmanager, which groups, silences and routes them itself."""
    url = receiver.address().rstrip("/").removesuffix(_ALERTS_PATH) + _ALERTS_PATH
    _post_json(receiver, url, posted_alerts(message, _LEASE_ROUNDS * (receiver.repeat_s or ALERTMANAGER_REPEAT_S)))


def send_through_apprise(receiver: Receiver, message: Message) -> None:
    """Send a message to any service that apprise knows by its URL: a Slack webhook, mail, Telegram, Matrix, Teams, ...

    The text is sent as plain text, which apprise escapes: nothing in it can mention anybody or hide a link.
    """
    try:
        import apprise
    except ImportError:
        raise DeliveryError("apprise is not installed: pip install 'rlscope[apprise]'") from None
    # Its log may quote the URL, and the URL is the secret.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    service = apprise.Apprise()
    if not service.add(receiver.address()):
        raise DeliveryError("apprise does not know its URL")
    kind = apprise.NotifyType.FAILURE if message.status == "firing" else apprise.NotifyType.SUCCESS
    plain, text = apprise.NotifyFormat.TEXT, "\n".join(lines(message))
    try:
        delivered = service.notify(text, title=title(message), notify_type=kind, body_format=plain)
    except Exception as error:  # A plug-in may raise anything, with anything in its text.
        raise DeliveryError(f"apprise failed ({type(error).__name__})") from None
    if not delivered:
        raise DeliveryError("apprise could not deliver it")


def run_command(receiver: Receiver, message: Message) -> None:
    """Run the receiver's command once, with the webhook payload on its standard input.

    Of the environment it gets _PASSED_ON alone, because the secrets of other receivers are there. It fails when it
    cannot start, ends with a status other than 0, or outlives the time limit. Its output is discarded, because it may
    print a secret.
    """
    body = json.dumps(webhook_payload(message)).encode()
    quiet = subprocess.DEVNULL
    try:
        # In a session of its own: the signal that ends the watch does not reach it, and its children end with it.
        process = subprocess.Popen(
            receiver.command or [],
            stdin=subprocess.PIPE,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
    except OSError as error:
        raise DeliveryError(f"the command cannot be started ({error.strerror})") from None
    with process:
        try:
            process.communicate(body, timeout=receiver.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise DeliveryError("the command did not end in time") from None
    if process.returncode:
        raise DeliveryError(f"the command ended with status {process.returncode}")


SENDERS: Final[Mapping[ReceiverKind, Send]] = {
    "webhook": send_to_webhook,
    "alertmanager": send_to_alertmanager,
    "apprise": send_through_apprise,
    "command": run_command,
}


# The payloads. A webhook gets what Alertmanager posts, version 4
# (https://prometheus.io/docs/alerting/latest/configuration/#webhook_config); Alertmanager's own input is described by
# its api/v2/openapi.yaml. Times are RFC 3339 in UTC.


def webhook_payload(message: Message) -> Json:
    """The version 4 payload, in which the alerts of a run are a group."""
    common = _common([all_labels(alert) for alert in message.alerts])
    group = {name: value for name, value in common.items() if name == "run"}
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{', '.join(f'{name}={json.dumps(value)}' for name, value in group.items())}}}",
        "truncatedAlerts": 0,
        "status": message.status,
        "receiver": message.receiver,
        "groupLabels": group,
        "commonLabels": common,
        "commonAnnotations": _common([dict(alert.annotations) for alert in message.alerts]),
        "externalURL": "",
        "alerts": [_webhook_alert(alert) for alert in message.alerts],
    }


def _webhook_alert(alert: Alert) -> Json:
    return {
        "status": "firing" if alert.end_ns is None else "resolved",
        "labels": all_labels(alert),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.start_ns),
        "endsAt": _NOT_ENDED if alert.end_ns is None else rfc3339(alert.end_ns),
        "generatorURL": "",
        "fingerprint": alert.fingerprint,
    }


def _common(each: Sequence[dict[str, str]]) -> dict[str, str]:
    """The pairs that all of them have."""
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}


def posted_alerts(message: Message, lease_s: float) -> list[Json]:
    """The body of POST /api/v2/alerts: a firing alert ends lease_s from now unless it is posted again before that."""
    lease_end_ns = message.now_ns + round(lease_s * _NS_PER_S)
    return [
        {
            "labels": all_labels(alert),
            "annotations": dict(alert.annotations),
            "startsAt": rfc3339(alert.start_ns),
            "endsAt": rfc3339(lease_end_ns if alert.end_ns is None else alert.end_ns),
        }
        for alert in message.alerts
    ]


def rfc3339(utc_ns: int) -> str:
    """A moment in UTC to the nanosecond, as 2026-01-31T12:00:00.000000001Z."""
    whole_s, rest_ns = divmod(utc_ns, _NS_PER_S)
    return f"{datetime.fromtimestamp(whole_s, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirect would carry the token to another server.
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _post_json(receiver: Receiver, url: str, body: object) -> None:
    """POST a body without following redirects; the receiver's timeout limits each wait for it.

    Raises DeliveryError unless the answer is 2xx.
    """
    request = _request(url, json.dumps(body, allow_nan=False).encode(), receiver.token())
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=receiver.timeout_s):
            pass
    except urllib.error.HTTPError as error:
        with error:
            raise DeliveryError(f"it answered HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise DeliveryError(_reason(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryError(_reason(error)) from None
    except ValueError:  # Its text quotes a header or a host name.
        raise DeliveryError("its URL or its token cannot be sent over HTTP") from None


def _request(url: str, body: bytes, token: str | None) -> urllib.request.Request:
    if not is_http(url) or not url.isascii() or any(char.isspace() or not char.isprintable() for char in url):
        raise DeliveryError("its URL is not an http or https URL")
    parts = urlsplit(url)
    headers = {"Content-Type": "application/json", "User-Agent": "rlscope"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
    return urllib.request.Request(bare.geturl(), data=body, headers=headers, method="POST")


def _reason(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    if isinstance(reason, ConnectionRefusedError):
        return "the connection was refused"
    # The system's own sentence for an error number quotes nothing.
    if isinstance(reason, OSError) and reason.strerror and type(reason).__module__ in ("builtins", "socket"):
        return f"it cannot be reached ({reason.strerror})"
    return f"it cannot be reached ({type(reason).__name__})"


def is_installed() -> bool:
    """Whether apprise can be imported."""
    return importlib.util.find_spec("apprise") is not None
