"""The `[[receivers]]` of a rule file: who is notified of alerts, and where their secrets come from.

A URL that holds a secret stays out of the file: `url_env` names an environment variable, `url_file` a file. The secret
is read when it is needed and never kept. No error and no `str()` repeats one, even where it was written into the file.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, TypeAdapter, WithJsonSchema

from rlscope.alerts.durations import DURATION_SCHEMA, parse_duration
from rlscope.analysis.result import Severity
from rlscope.errors import SecretError
from rlscope.input_file import ParsedFile, Place


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The value of an environment variable."""

    variable: str

    def reveal(self, environment: Mapping[str, str] = os.environ) -> str:
        """The secret. Raises SecretError when the variable is not set or is empty."""
        value = environment.get(self.variable, "").strip()
        if not value:
            raise SecretError.of(
                f"${self.variable}",
                found="nothing",
                expected="the secret",
                next_step="Set it in the environment of the watch.",
            )
        return value

    def __str__(self) -> str:
        return f"${self.variable}"


@dataclass(frozen=True, slots=True)
class FromFile:
    """The text of a file without surrounding white space, read each time so that the secret can be rotated."""

    path: Path

    def reveal(self) -> str:
        """The secret. Raises SecretError when the file cannot be read or is empty."""
        try:
            value = self.path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            found = (error.strerror or "an error") if isinstance(error, OSError) else "no text"
            raise self._refusal(found) from None
        if not value:
            raise self._refusal("an empty file")
        return value

    def __str__(self) -> str:
        return str(self.path)

    def _refusal(self, found: str) -> SecretError:
        return SecretError.of(
            self.path, found=found, expected="a secret", next_step="Write it there and make it readable to the watch."
        )


@dataclass(frozen=True, slots=True)
class InTheOpen:
    """A value in the rule file itself, because it is not secret."""

    value: str = field(repr=False)

    def reveal(self) -> str:
        """The value."""
        return self.value

    def __str__(self) -> str:
        # Whoever wrote it may have been wrong that it is public.
        return "the URL in the rule file"


SecretSource = FromEnvironment | FromFile | InTheOpen


ReceiverKind = Literal["webhook", "alertmanager", "slack", "apprise", "command"]

TIMEOUT_S: Final = 10.0
"""Longer than any healthy receiver takes, shorter than the time between two polls of a run."""
GROUP_INTERVAL_S: Final = 30.0
"""Alerts that start together are sent together: one message, not five."""
ALERTMANAGER_REPEAT_S: Final = 60.0
"""Alertmanager resolves an alert whose end has passed, so a firing alert is posted repeatedly with a later end."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver of notifications."""

    name: str
    kind: ReceiverKind
    address: SecretSource | None = None
    """Where to post; None for a command."""
    argv: tuple[str, ...] = ()
    """The command and its arguments; empty for every other kind."""
    token: SecretSource | None = None
    """Sent as a bearer token; None sends none."""
    severity: Severity = "info"
    """Alerts below this severity are not sent."""
    group_by: tuple[str, ...] = ("alertname",)
    """Alerts that agree in these labels share a message; `alertname` is the rule."""
    timeout_s: float = TIMEOUT_S
    group_interval_s: float = GROUP_INTERVAL_S
    """Minimum time between two messages about one group."""
    repeat_s: float | None = None
    """Interval at which a firing alert is sent again. None sends it once."""
    send_resolved: bool = True
    max_alerts: int = 100
    """Most alerts listed in a message; it counts the rest."""


# A path segment this long with digits among its letters is how services write the secret part of a URL.
_TOKEN_LIKE: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_\-.~%]{16,}")


def holds_secret(url: str) -> bool:
    """Whether a URL has a user, a query, a fragment, or a part of its path that looks like a token."""
    parts = urlsplit(url)
    tokens = any(_TOKEN_LIKE.fullmatch(segment) for segment in parts.path.split("/"))
    return bool(parts.username or parts.password or "@" in parts.netloc or parts.query or parts.fragment) or tokens


def _public_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_http = False
    if not is_http:
        raise ValueError("an http or https URL")
    if holds_secret(url):
        raise ValueError("a URL without a secret: this one seems to hold one, so name it under url_env or url_file")
    return url


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("the name of an environment variable, not the secret itself")
    return name


def _seconds(written: object) -> float:
    return parse_duration(written if isinstance(written, str) else "") / 1e9


def _positive_seconds(written: object) -> float:
    if not (seconds := _seconds(written)):
        raise ValueError("a duration above 0s")
    return seconds


_HIDDEN: Final[dict[str, JsonValue]] = {"writeOnly": True}
_Text = Annotated[str, Field(strict=True, min_length=1, pattern=r"\S")]
_Secret = Annotated[str, Field(strict=True, min_length=1, pattern=r"\S", json_schema_extra=_HIDDEN)]
_Url = Annotated[_Secret, AfterValidator(_public_url)]
_Variable = Annotated[_Secret, AfterValidator(_variable)]
_Seconds = Annotated[float, BeforeValidator(_seconds), WithJsonSchema(DURATION_SCHEMA)]
_PositiveSeconds = Annotated[float, BeforeValidator(_positive_seconds), WithJsonSchema(DURATION_SCHEMA)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """Settings that all kinds of receivers share."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: Annotated[_Text, Field(description="What messages and errors call it; unique in the file.")]
    severity: Annotated[Severity, Field(description="Alerts below this severity are not sent.")] = "info"
    group_by: Annotated[
        list[_Text] | None, Field(min_length=1, description="Alerts that agree in these labels share a message.")
    ] = None
    timeout: Annotated[_PositiveSeconds | None, Field(description="Longest wait for the receiver.")] = None
    group_interval: Annotated[
        _Seconds | None, Field(description="Minimum time between two messages about one group.")
    ] = None
    repeat: Annotated[_Seconds | None, Field(description="How often a firing alert is sent again.")] = None
    send_resolved: Annotated[bool, Field(strict=True, description="Whether the end of an alert is sent.")] = True
    max_alerts: Annotated[int, Field(strict=True, ge=1, le=10_000, description="Most alerts in a message.")] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithSecretUrl(_Common):
    """A receiver whose URL is itself the secret, so that it cannot be in the file."""

    url_env: Annotated[_Variable | None, Field(description="Environment variable that holds the URL.")] = None
    url_file: Annotated[_Secret | None, Field(description="File that holds the URL.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithUrl(_WithSecretUrl):
    """A receiver with a URL, and perhaps a bearer token."""

    url: Annotated[_Url | None, Field(description="The URL, where it holds no secret.")] = None
    token_env: Annotated[_Variable | None, Field(description="Environment variable that holds a bearer token.")] = None
    token_file: Annotated[_Secret | None, Field(description="File that holds a bearer token.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTable(_WithUrl):
    """A webhook that takes the payload of Alertmanager's webhooks (version 4)."""

    kind: Literal["webhook"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerTable(_WithUrl):
    """A Prometheus Alertmanager."""

    kind: Literal["alertmanager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackTable(_WithSecretUrl):
    """A Slack incoming webhook; needs the extra rlscope[apprise]."""

    kind: Literal["slack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseTable(_WithSecretUrl):
    """Any service that apprise knows, by its URL; needs the extra rlscope[apprise]."""

    kind: Literal["apprise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTable(_Common):
    """A command that reads the webhook's payload from its standard input."""

    kind: Literal["command"]
    command: Annotated[
        list[Annotated[str, Field(strict=True, min_length=1, json_schema_extra=_HIDDEN)]],
        Field(min_length=1, json_schema_extra=_HIDDEN, description="The command and its arguments."),
    ]


ReceiverTable = Annotated[
    WebhookTable | AlertmanagerTable | SlackTable | AppriseTable | CommandTable, Field(discriminator="kind")
]
"""One receiver as it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Receivers:
    """The receivers of a document; its other keys are not looked at."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    receivers: list[ReceiverTable] = field(default_factory=list[ReceiverTable])


@cache
def _model() -> TypeAdapter[_Receivers]:
    return TypeAdapter(_Receivers)


def receivers_of(source: ParsedFile) -> tuple[Receiver, ...]:
    """The receivers of a document; none where it names none. Raises RuleError."""
    _refuse_secret_urls(source)
    tables = source.validated(_model()).receivers
    names = [table.name for table in tables]
    for index, name in enumerate(names):
        if name in names[:index]:
            expected = "a name of its own for every receiver"
            raise source.error(("receivers", index, "name"), found=repr(name), expected=expected)
    return tuple(_receiver(source, ("receivers", index), table) for index, table in enumerate(tables))


def _refuse_secret_urls(source: ParsedFile) -> None:
    """A `url` where the URL is the secret is more than an unknown key."""
    written: Any = source.document.get("receivers")
    for index, table in enumerate(written if isinstance(written, list) else []):
        kind = table.get("kind") if isinstance(table, dict) else None
        if kind in ("slack", "apprise") and "url" in table:
            raise source.error(
                ("receivers", index, "url"),
                found=f"a url in a receiver of kind {kind!r}",
                expected="url_env or url_file",
                next_step=f"The URL of {kind} is a secret: name a variable in url_env, or a file in url_file.",
            )


def _receiver(source: ParsedFile, place: Place, table: ReceiverTable) -> Receiver:
    is_alertmanager = table.kind == "alertmanager"
    # Alertmanager groups by itself, and needs every alert at once.
    group_by = () if is_alertmanager else ("alertname",)
    interval_s = 0.0 if is_alertmanager else GROUP_INTERVAL_S
    repeat_s = ALERTMANAGER_REPEAT_S if is_alertmanager else None
    return Receiver(
        name=table.name,
        kind=table.kind,
        address=None if isinstance(table, CommandTable) else _address(source, place, table),
        argv=tuple(table.command) if isinstance(table, CommandTable) else (),
        token=_token(source, place, table) if isinstance(table, _WithUrl) else None,
        severity=table.severity,
        group_by=group_by if table.group_by is None else tuple(table.group_by),
        timeout_s=TIMEOUT_S if table.timeout is None else table.timeout,
        group_interval_s=interval_s if table.group_interval is None else table.group_interval,
        repeat_s=repeat_s if table.repeat is None else table.repeat,
        send_resolved=table.send_resolved,
        max_alerts=table.max_alerts,
    )


def _address(source: ParsedFile, place: Place, table: _WithSecretUrl) -> SecretSource:
    url = table.url if isinstance(table, _WithUrl) else None
    given = {"url": url, "url_env": table.url_env, "url_file": table.url_file}
    named = [key for key, value in given.items() if value is not None]
    if len(named) != 1:
        keys = given if isinstance(table, _WithUrl) else ("url_env", "url_file")
        found = " and ".join(named) or "no URL"
        raise source.error(place, found=found, expected=f"one of {', '.join(keys)}")
    secret = _secret(source, table.url_env, table.url_file)
    return secret if url is None and secret is not None else InTheOpen(url or "")


def _token(source: ParsedFile, place: Place, table: _WithUrl) -> SecretSource | None:
    if table.token_env is not None and table.token_file is not None:
        raise source.error(place, found="both token_env and token_file", expected="one of them")
    return _secret(source, table.token_env, table.token_file)


def _secret(source: ParsedFile, variable: str | None, file: str | None) -> FromEnvironment | FromFile | None:
    if variable is not None:
        return FromEnvironment(variable)
    # Relative to the rule file, wherever the watch was started.
    return None if file is None else FromFile(Path(source.name).parent / file)
