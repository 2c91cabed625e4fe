"""The `[[receivers]]` of a rule file: where alerts are sent, and the sources of the secrets for it.

A URL that holds a secret stays out of the file: `url_env` names an environment variable, `url_file` a file. The secret
is read when it is needed and never kept. No error and no `str()` repeats one, even if the file contains it.
"""

import os
import re
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, TypeAdapter

from rlscope.alerts.durations import parse_duration
from rlscope.analysis.result import Severity
from rlscope.errors import SecretError
from rlscope.input_file import ParsedFile, Place


@dataclass(frozen=True, slots=True)
class Source:
    """Where a URL or a token is: in an environment variable, in a file, or, if it is not secret, in the rule file."""

    variable: str | None = None
    path: Path | None = None
    value: str | None = field(default=None, repr=False)
    """Not shown, because the author of the rule file may be wrong that it is public."""

    def reveal(self) -> str:
        """Return it without surrounding white space, read anew so that it can be rotated.

        Raises SecretError if there is none.
        """
        if self.value is not None:
            return self.value
        if self.path is not None:
            return self._in_file(self.path)
        secret = os.environ.get(self.variable or "", "").strip()
        if not secret:
            raise SecretError.of(
                f"${self.variable}",
                found="nothing",
                expected="the secret",
                next_step="Set it in the environment of the watch.",
            )
        return secret

    def _in_file(self, path: Path) -> str:
        try:
            secret = path.read_text(encoding="utf-8").strip()
            found = "an empty file"
        except (OSError, UnicodeDecodeError) as error:
            secret, found = "", (error.strerror or "an error") if isinstance(error, OSError) else "no text"
        if not secret:
            raise SecretError.of(
                path, found=found, expected="a secret", next_step="Write it there and make it readable to the watch."
            )
        return secret


ReceiverKind = Literal["webhook", "alertmanager", "apprise", "command"]

TIMEOUT_S: Final = 10.0
"""Longer than any healthy receiver takes, shorter than the time between two polls of a run."""
INTERVAL_S: Final = 30.0
"""Alerts that start together are sent together: one message, not five."""
ALERTMANAGER_REPEAT_S: Final = 60.0
"""Alertmanager resolves an alert whose end has passed, so a firing alert is posted repeatedly with a later end."""


# Services write the secret part of a URL as a path segment this long, of letters and digits.
_TOKEN_LIKE: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_\-.~%]{16,}")


def holds_secret(url: str) -> bool:
    """Whether a URL has a user, a query, a fragment, or a part of its path that looks like a token."""
    parts = urlsplit(url)
    tokens = any(_TOKEN_LIKE.fullmatch(segment) for segment in parts.path.split("/"))
    return bool(parts.username or parts.password or "@" in parts.netloc or parts.query or parts.fragment) or tokens


def is_http(url: str) -> bool:
    """Whether a text is an http or https URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _public_url(url: str) -> str:
    if not is_http(url):
        raise ValueError("an http or https URL")
    if holds_secret(url):
        raise ValueError("a URL without a secret: this one seems to hold one, so name it under url_env or url_file")
    return url


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("the name of an environment variable, not the secret itself")
    return name


def _seconds(written: object) -> float:
    return parse_duration(written) / 1e9


def _positive_seconds(written: object) -> float:
    if not (seconds := _seconds(written)):
        raise ValueError("a duration above 0s")
    return seconds


_HIDDEN: Final[dict[str, JsonValue]] = {"writeOnly": True}
_Text = Annotated[str, Field(strict=True, min_length=1, pattern=r"\S")]
_Secret = Annotated[str, Field(strict=True, min_length=1, pattern=r"\S", json_schema_extra=_HIDDEN)]
_Url = Annotated[_Secret, AfterValidator(_public_url)]
_Variable = Annotated[_Secret, AfterValidator(_variable)]


_Seconds = Annotated[float, BeforeValidator(_seconds)]
_PositiveSeconds = Annotated[float, BeforeValidator(_positive_seconds)]
_Interval = Annotated[_Seconds, Field(alias="interval")]
_Repeat = Annotated[_Seconds | None, Field(alias="repeat")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """Settings that all kinds of receivers share."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: _Text
    """Name in messages and errors; unique in the file."""
    severity: Severity = "info"
    """Alerts below this severity are not sent."""
    timeout_s: Annotated[_PositiveSeconds, Field(alias="timeout")] = TIMEOUT_S
    """Longest wait for the receiver."""
    interval_s: _Interval = INTERVAL_S
    """Minimum time between two messages."""
    repeat_s: _Repeat = None
    """Interval at which a firing alert is sent again. None sends it once."""
    send_resolved: Annotated[bool, Field(strict=True)] = True
    """Whether the end of an alert is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver(_Common):
    """One receiver of notifications."""

    kind: ReceiverKind
    address: Source | None = None
    """Where to post; None for a command."""
    argv: tuple[str, ...] = ()
    """The command and its arguments; empty for every other kind."""
    token: Source | None = None
    """Sent as a bearer token; None sends none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithSecretUrl(_Common):
    """A receiver whose URL is itself the secret, so that it cannot be in the file."""

    url_env: _Variable | None = None
    """Environment variable that holds the URL."""
    url_file: _Secret | None = None
    """File that holds the URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithUrl(_WithSecretUrl):
    """A receiver with a URL and an optional bearer token."""

    url: _Url | None = None
    """The URL, if it holds no secret."""
    token_env: _Variable | None = None
    """Environment variable that holds a bearer token."""
    token_file: _Secret | None = None
    """File that holds a bearer token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTable(_WithUrl):
    """A webhook that takes the payload of Alertmanager's webhooks (version 4)."""

    kind: Literal["webhook"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerTable(_WithUrl):
    """A Prometheus Alertmanager, which groups by itself and needs every alert at once."""

    kind: Literal["alertmanager"]
    interval_s: _Interval = 0.0
    repeat_s: _Repeat = ALERTMANAGER_REPEAT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseTable(_WithSecretUrl):
    """A service that apprise supports, by its URL, such as a Slack webhook; needs the extra rlscope[apprise]."""

    kind: Literal["apprise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTable(_Common):
    """A command that reads the webhook's payload from its standard input."""

    kind: Literal["command"]
    command: Annotated[
        list[Annotated[str, Field(strict=True, min_length=1, json_schema_extra=_HIDDEN)]],
        Field(min_length=1, json_schema_extra=_HIDDEN),
    ]


ReceiverTable = Annotated[WebhookTable | AlertmanagerTable | AppriseTable | CommandTable, Field(discriminator="kind")]
"""One receiver, as in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Receivers:
    """The receivers of a document; its other keys are ignored."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    receivers: list[ReceiverTable] = field(default_factory=list[ReceiverTable])


@cache
def _model() -> TypeAdapter[_Receivers]:
    return TypeAdapter(_Receivers)


def receivers_of(source: ParsedFile) -> tuple[Receiver, ...]:
    """Return the receivers of a document. Raises RuleError."""
    _refuse_secret_urls(source)
    tables = source.validated(_model()).receivers
    source.refuse_repeated("receivers", [table.name for table in tables], "receiver")
    return tuple(_receiver(source, ("receivers", index), table) for index, table in enumerate(tables))


def _refuse_secret_urls(source: ParsedFile) -> None:
    """Refuse the `url` of apprise, which is a secret, with more help than for an unknown key."""
    written: Any = source.document.get("receivers")
    for index, table in enumerate(written if isinstance(written, list) else []):
        if isinstance(table, dict) and table.get("kind") == "apprise" and "url" in table:
            raise source.error(
                ("receivers", index, "url"),
                found="a url in a receiver of kind 'apprise'",
                expected="url_env or url_file",
                next_step="The URL of a service is a secret: name a variable in url_env, or a file in url_file.",
            )


def _receiver(source: ParsedFile, place: Place, table: ReceiverTable) -> Receiver:
    return Receiver(
        **{each.name: getattr(table, each.name) for each in fields(_Common)},
        kind=table.kind,
        address=None if isinstance(table, CommandTable) else _address(source, place, table),
        argv=tuple(table.command) if isinstance(table, CommandTable) else (),
        token=_token(source, place, table) if isinstance(table, _WithUrl) else None,
    )


def _address(source: ParsedFile, place: Place, table: _WithSecretUrl) -> Source | None:
    url = table.url if isinstance(table, _WithUrl) else None
    given = {"url": url, "url_env": table.url_env, "url_file": table.url_file}
    named = [key for key, value in given.items() if value is not None]
    if len(named) != 1:
        keys = given if isinstance(table, _WithUrl) else ("url_env", "url_file")
        found = " and ".join(named) or "no URL"
        raise source.error(place, found=found, expected=f"one of {', '.join(keys)}")
    return _source(source, table.url_env, table.url_file, url)


def _token(source: ParsedFile, place: Place, table: _WithUrl) -> Source | None:
    if table.token_env is not None and table.token_file is not None:
        raise source.error(place, found="both token_env and token_file", expected="one of them")
    return _source(source, table.token_env, table.token_file)


def _source(source: ParsedFile, variable: str | None, file: str | None, value: str | None = None) -> Source | None:
    # A file is relative to the rule file, wherever the watch was started.
    path = None if file is None else Path(source.name).parent / file
    return None if (variable, path, value) == (None, None, None) else Source(variable, path, value)
