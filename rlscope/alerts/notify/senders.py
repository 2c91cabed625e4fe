"""One POST of JSON: with a time limit, without following redirects, and with failures in words of our own.

An address may hold a secret in any of its parts, so no text of a library that could quote it is passed on.

The address and the token of a receiver, at the moment in which they are used.

Alertmanager's two shapes of JSON: what it posts to a webhook (version 4), and what it takes at /api/v2/alerts.

The first is documented at https://prometheus.io/docs/alerting/latest/configuration/#webhook_config, the second in
Alertmanager's own api/v2/openapi.yaml. Times are RFC 3339 in UTC.

A running Alertmanager, which groups, silences and routes by its own configuration.

A webhook that takes what Alertmanager posts (version 4 of its payload).

A Slack incoming webhook: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks.

Any service that apprise knows, by its URL: mail, Telegram, Matrix, Teams, ... Needs the extra rlscope[apprise].

A command of the user's own: Alertmanager's webhook payload comes as JSON on its standard input.
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
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from rlscope.alerts.notify.message import DeliveryError, Message, all_labels, lines, title
from rlscope.alerts.receiver import ALERTMANAGER_REPEAT_S, Receiver
from rlscope.analysis.result import Alert


def address_of(receiver: Receiver) -> str:
    """Where to send to. Raises SecretError, DeliveryError."""
    if receiver.address is None:
        raise DeliveryError("it has no address")
    return receiver.address.reveal()


def token_of(receiver: Receiver) -> str | None:
    """The bearer token; None when it has none. Raises SecretError."""
    return None if receiver.token is None else receiver.token.reveal()


# Longer ones are taken for a mistake of the receiver: an hour without news of a failing run is long.
_LONGEST_RETRY_AFTER_S: Final = 3600.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirect would carry the token to wherever the answer says.
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def post_json(address: str, body: object, *, timeout_s: float, token: str | None = None) -> None:
    """Post a body; raises DeliveryError unless the answer is 2xx. timeout_s limits each wait for the receiver."""
    request = _request(address, json.dumps(body, allow_nan=False).encode(), token)
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=timeout_s):
            pass
    except urllib.error.HTTPError as error:
        with error:
            raise DeliveryError(f"it answered HTTP {error.code}", _retry_after_s(error)) from None
    except urllib.error.URLError as error:
        raise DeliveryError(_words(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryError(_words(error)) from None
    except ValueError:  # Its text quotes a header or a host name.
        raise DeliveryError("its address or its token cannot be sent over HTTP") from None


def _request(address: str, body: bytes, token: str | None) -> urllib.request.Request:
    parts = _checked(address)
    headers = {"Content-Type": "application/json", "User-Agent": "rlscope"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
    return urllib.request.Request(bare.geturl(), data=body, headers=headers, method="POST")


def _checked(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or not address.isascii() or any(char.isspace() or not char.isprintable() for char in address):
        raise DeliveryError("its address is no http or https URL")
    return urlsplit(address)


def _retry_after_s(error: urllib.error.HTTPError) -> float | None:
    """The seconds that the answer asks for; a date, or none, is None."""
    asked = error.headers.get("Retry-After", "").strip()
    return min(float(asked), _LONGEST_RETRY_AFTER_S) if asked.isdecimal() else None


def _words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    if isinstance(reason, ConnectionRefusedError):
        return "the connection was refused"
    # The system's own sentence for an error number quotes nothing.
    if isinstance(reason, OSError) and reason.strerror and type(reason).__module__ in ("builtins", "socket"):
        return f"it cannot be reached ({reason.strerror})"
    return f"it cannot be reached ({type(reason).__name__})"


VERSION: Final = "4"
_NEVER: Final = "0001-01-01T00:00:00Z"
_NS_PER_S: Final = 1_000_000_000

Json = dict[str, object]


def webhook_payload(message: Message, max_alerts: int) -> Json:
    """The version 4 payload; alerts beyond max_alerts are counted in truncatedAlerts."""
    shown = message.alerts[:max_alerts]
    return {
        "version": VERSION,
        "groupKey": message.group_key,
        "truncatedAlerts": len(message.alerts) - len(shown),
        "status": message.status,
        "receiver": message.receiver,
        "groupLabels": dict(message.group_labels),
        "commonLabels": _common([all_labels(alert) for alert in message.alerts]),
        "commonAnnotations": _common([dict(alert.annotations) for alert in message.alerts]),
        "externalURL": "",
        "alerts": [_alert(alert) for alert in shown],
    }


def posted_alerts(message: Message, lease_s: float) -> list[Json]:
    """The body of POST /api/v2/alerts: what fires ends lease_s from now unless it is posted again before that."""
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


def _alert(alert: Alert) -> Json:
    return {
        "status": "firing" if alert.end_ns is None else "resolved",
        "labels": all_labels(alert),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.start_ns),
        "endsAt": _NEVER if alert.end_ns is None else rfc3339(alert.end_ns),
        "generatorURL": "",
        "fingerprint": alert.fingerprint,
    }


def _common(each: Sequence[dict[str, str]]) -> dict[str, str]:
    """The pairs that all of them hold."""
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each)}


_PATH: Final = "/api/v2/alerts"
# Prometheus gives its alerts four of its own rounds to live: three posts in a row may be lost.
_LEASE_ROUNDS: Final = 4


def send_to_alertmanager(receiver: Receiver, message: Message) -> None:
    """Post the alerts of a message. Raises DeliveryError, SecretError."""
    address = address_of(receiver).rstrip("/")
    target = address if address.endswith(_PATH) else address + _PATH
    body = posted_alerts(message, _LEASE_ROUNDS * (receiver.repeat_s or ALERTMANAGER_REPEAT_S))
    post_json(target, body, timeout_s=receiver.timeout_s, token=token_of(receiver))


def send_to_webhook(receiver: Receiver, message: Message) -> None:
    """Post one message. Raises DeliveryError, SecretError."""
    body = webhook_payload(message, receiver.max_alerts)
    post_json(address_of(receiver), body, timeout_s=receiver.timeout_s, token=token_of(receiver))


# Nobody reads further in a chat.
_MOST_LINES: Final = 20
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def send_to_slack(receiver: Receiver, message: Message) -> None:
    """Post one message. Raises DeliveryError, SecretError."""
    body = {"text": text_of(message, min(receiver.max_alerts, _MOST_LINES))}
    post_json(address_of(receiver), body, timeout_s=receiver.timeout_s)


def text_of(message: Message, max_alerts: int) -> str:
    """The text in Slack's own mark-up: what a run supplied can neither mention anybody nor hide a link."""
    escaped = [line.translate(_ESCAPES) for line in lines(message, max_alerts)]
    return "\n".join([f"*{title(message).translate(_ESCAPES)}*", *(f"• {line}" for line in escaped)])


def is_installed() -> bool:
    """Whether apprise can be imported."""
    return importlib.util.find_spec("apprise") is not None


def send_through_apprise(receiver: Receiver, message: Message) -> None:
    """Send one message. Raises DeliveryError, SecretError."""
    try:
        import apprise
    except ImportError:
        raise DeliveryError("apprise is not installed: pip install 'rlscope[apprise]'") from None
    # Its log may quote the URL, and the URL is the secret.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    service = apprise.Apprise()
    if not service.add(address_of(receiver)):
        raise DeliveryError("apprise does not know its URL")
    kind = apprise.NotifyType.FAILURE if message.status == "firing" else apprise.NotifyType.SUCCESS
    body = "\n".join(lines(message, receiver.max_alerts))
    try:
        delivered = service.notify(body=body, title=title(message), notify_type=kind)
    except Exception as error:  # A plug-in may raise anything, with anything in its text.
        raise DeliveryError(f"apprise failed ({type(error).__name__})") from None
    if not delivered:
        raise DeliveryError("apprise could not deliver it")


def run_command(receiver: Receiver, message: Message) -> None:
    """Run the command once. Raises DeliveryError when it cannot start, fails, or outlives the time limit.

    What it prints goes nowhere: it may print what it was given to keep secret.
    """
    body = json.dumps(webhook_payload(message, receiver.max_alerts)).encode()
    quiet = subprocess.DEVNULL
    try:
        # A session of its own: the signal that ends the watch leaves it alone, and its children end with it.
        process = subprocess.Popen(
            receiver.argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
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
