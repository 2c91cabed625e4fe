"""The `[[receivers]]` of a rule file: where alerts are sent, and the sources of the secrets for it.

A URL that holds a secret stays out of the file: `url_env` names an environment variable, `url_file` a file. The secret
is read when it is needed and never kept. No error and no `str()` repeats one, even if the file contains it.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue

from rlscope.alerts.durations import parse_duration
from rlscope.analysis.result import Severity
from rlscope.errors import SecretError
from rlscope.input_file import ParsedFile, Place

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
class Receiver:
    """One receiver of notifications, as in the file."""

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
    interval_s: Annotated[_Seconds, Field(alias="interval")] = INTERVAL_S
    """Minimum time between two messages. For Alertmanager, which groups by itself, the default is 0."""
    repeat_s: Annotated[_Seconds | None, Field(alias="repeat")] = None
    """Interval at which a firing alert is sent again. None sends it once; to Alertmanager, ALERTMANAGER_REPEAT_S."""
    send_resolved: Annotated[bool, Field(strict=True)] = True
    """Whether the end of an alert is sent."""
    url: _Url | None = field(default=None, repr=False)
    """The URL, if it holds no secret. Not shown, because the author of the rule file may be wrong about that."""
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

    def address(self) -> str:
        """Return the URL, read anew so that it can be rotated. Raises SecretError if there is none."""
        return _secret(self.url_env, self.url_file) if self.url is None else self.url

    def token(self) -> str | None:
        """Return the bearer token, as `address`; None sends none."""
        return _secret(self.token_env, self.token_file) if self.token_env or self.token_file else None

    def check_secrets(self) -> None:
        """Raise SecretError if one of the secrets is missing."""
        if self.kind != "command":
            self.address()
        self.token()


def receivers_of(source: ParsedFile, receivers: Sequence[Receiver]) -> tuple[Receiver, ...]:
    """Return the receivers of a document with its defaults. Raises RuleError for keys that do not go together."""
    source.refuse_repeated("receivers", [each.name for each in receivers], "receiver")
    return tuple(_completed(source, ("receivers", index), each) for index, each in enumerate(receivers))


def _completed(source: ParsedFile, place: Place, receiver: Receiver) -> Receiver:
    _check_keys(source, place, receiver)
    # A file is relative to the rule file, wherever the watch was started.
    folder, files = Path(source.name).parent, {"url_file": receiver.url_file, "token_file": receiver.token_file}
    known: dict[str, Any] = {key: str(folder / name) for key, name in files.items() if name is not None}
    if receiver.kind == "alertmanager":
        written: Any = source.document["receivers"]
        defaults = {"interval": ("interval_s", 0.0), "repeat": ("repeat_s", ALERTMANAGER_REPEAT_S)}
        known |= dict(default for key, default in defaults.items() if key not in written[place[1]])
    return replace(receiver, **known)


def _check_keys(source: ParsedFile, place: Place, receiver: Receiver) -> None:
    """Refuse keys of another kind, a missing address, and two sources of the same secret."""
    keys = _KEYS[receiver.kind]
    given = [key for key in (*_URL, *_TOKEN, "command") if getattr(receiver, key) is not None]
    for key in given:
        if key not in keys:
            found = f"{key} in a receiver of kind {receiver.kind!r}"
            raise source.error((*place, key), found=found, expected=f"one of {', '.join(keys)}")
    where, wanted = ([key for key in some if key not in _TOKEN] for some in (given, keys))
    if len(where) != 1:
        raise source.error(place, found=" and ".join(where) or f"no {wanted[0]}", expected=" or ".join(wanted))
    if receiver.token_env is not None and receiver.token_file is not None:
        raise source.error(place, found="both token_env and token_file", expected="one of them")


def _secret(variable: str | None, file: str | None) -> str:
    """Return the secret in a file or else in a variable, without surrounding white space. Raises SecretError."""
    if file is None:
        if not (secret := os.environ.get(variable or "", "").strip()):
            raise SecretError.of(
                f"${variable}",
                found="nothing",
                expected="the secret",
                next_step="Set it in the environment of the watch.",
            )
        return secret
    try:
        secret, found = Path(file).read_text(encoding="utf-8").strip(), "an empty file"
    except (OSError, UnicodeDecodeError) as error:
        secret, found = "", (error.strerror or "an error") if isinstance(error, OSError) else "no text"
    if not secret:
        raise SecretError.of(
            file, found=found, expected="a secret", next_step="Write it there and make it readable to the watch."
        )
    return secret
