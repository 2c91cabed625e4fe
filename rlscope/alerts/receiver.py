"""The `[[receivers]]` of a rule file: where alerts are sent, and the sources of the secrets for it.

A URL that holds a secret stays out of the file: `url_env` names an environment variable, `url_file` a file. The secret
is read when it is needed and never kept. No error and no `str()` repeats one, even if the file contains it.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue

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
_Argument = Annotated[str, Field(strict=True, min_length=1, json_schema_extra=_HIDDEN)]
_Command = Annotated[list[_Argument], Field(min_length=1, json_schema_extra=_HIDDEN)]

_URL: Final = ("url", "url_env", "url_file")
_TOKEN: Final = ("token_env", "token_file")
_KEYS: Final[Mapping[ReceiverKind, tuple[str, ...]]] = {
    "webhook": (*_URL, *_TOKEN),
    "alertmanager": (*_URL, *_TOKEN),
    # The URL of a service is itself the secret.
    "apprise": ("url_env", "url_file"),
    "command": ("command",),
}
"""Keys that say where a receiver of each kind is. Of those for the URL exactly one is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverTable:
    """One receiver, as in the file."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: _Text
    """Name in messages and errors; unique in the file."""
    kind: ReceiverKind
    """webhook: takes the payload of Alertmanager's webhooks (version 4). alertmanager: groups by itself. apprise: a
    service that apprise supports, such as Slack. command: reads the webhook's payload from its standard input."""
    severity: Severity = "info"
    """Alerts below this severity are not sent."""
    timeout_s: Annotated[float, BeforeValidator(_positive_seconds), Field(alias="timeout")] = TIMEOUT_S
    """Longest wait for the receiver."""
    interval_s: Annotated[_Seconds | None, Field(alias="interval")] = None
    """Minimum time between two messages. None: INTERVAL_S, or 0 for Alertmanager, which groups by itself."""
    repeat_s: Annotated[_Seconds | None, Field(alias="repeat")] = None
    """Interval at which a firing alert is sent again. None sends it once; to Alertmanager, ALERTMANAGER_REPEAT_S."""
    send_resolved: Annotated[bool, Field(strict=True)] = True
    """Whether the end of an alert is sent."""
    url: _Url | None = None
    """The URL, if it holds no secret."""
    url_env: _Variable | None = None
    """Environment variable that holds the URL."""
    url_file: _Secret | None = None
    """File that holds the URL."""
    token_env: _Variable | None = None
    """Environment variable that holds a bearer token."""
    token_file: _Secret | None = None
    """File that holds a bearer token."""
    command: _Command | None = None
    """The command and its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """One receiver of notifications."""

    name: str
    kind: ReceiverKind
    severity: Severity = "info"
    timeout_s: float = TIMEOUT_S
    interval_s: float = INTERVAL_S
    repeat_s: float | None = None
    send_resolved: bool = True
    address: Source | None = None
    """Where to post; None for a command."""
    argv: tuple[str, ...] = ()
    """The command and its arguments; empty for every other kind."""
    token: Source | None = None
    """Sent as a bearer token; None sends none."""


def receivers_of(source: ParsedFile, tables: Sequence[ReceiverTable]) -> tuple[Receiver, ...]:
    """Return the receivers of a document from its tables. Raises RuleError."""
    source.refuse_repeated("receivers", [table.name for table in tables], "receiver")
    return tuple(_receiver(source, ("receivers", index), table) for index, table in enumerate(tables))


def _receiver(source: ParsedFile, place: Place, table: ReceiverTable) -> Receiver:
    is_alertmanager = table.kind == "alertmanager"
    interval_s, repeat_s = (0.0, ALERTMANAGER_REPEAT_S) if is_alertmanager else (INTERVAL_S, None)
    _check_keys(source, place, table)
    return Receiver(
        name=table.name,
        kind=table.kind,
        severity=table.severity,
        timeout_s=table.timeout_s,
        interval_s=interval_s if table.interval_s is None else table.interval_s,
        repeat_s=repeat_s if table.repeat_s is None else table.repeat_s,
        send_resolved=table.send_resolved,
        address=_source(source, table.url_env, table.url_file, table.url),
        argv=tuple(table.command or ()),
        token=_source(source, table.token_env, table.token_file),
    )


def _check_keys(source: ParsedFile, place: Place, table: ReceiverTable) -> None:
    """Refuse keys of another kind, a missing address, and two sources of the same secret."""
    keys = _KEYS[table.kind]
    given = [key for key in (*_URL, *_TOKEN, "command") if getattr(table, key) is not None]
    for key in given:
        if key not in keys:
            found = f"{key} in a receiver of kind {table.kind!r}"
            raise source.error((*place, key), found=found, expected=f"one of {', '.join(keys)}")
    where, wanted = ([key for key in some if key not in _TOKEN] for some in (given, keys))
    if len(where) != 1:
        raise source.error(place, found=" and ".join(where) or f"no {wanted[0]}", expected=" or ".join(wanted))
    if table.token_env is not None and table.token_file is not None:
        raise source.error(place, found="both token_env and token_file", expected="one of them")


def _source(source: ParsedFile, variable: str | None, file: str | None, value: str | None = None) -> Source | None:
    # A file is relative to the rule file, wherever the watch was started.
    path = None if file is None else Path(source.name).parent / file
    return None if (variable, path, value) == (None, None, None) else Source(variable, path, value)
