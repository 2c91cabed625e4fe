"""Reads the `[[receivers]]` of a file of rules: who is told of alerts, and where their secrets come from.

An address that holds a secret stays out of the file: `url_env` names a variable, `url_file` a file. No error quotes an
address, even one that should not have been there.

Where a secret comes from: the environment or a file, asked for when it is needed and never kept.

Nothing here puts a secret into text: an error names the variable or the file, and so does `str()` of a source.

Who is told of alerts, as facts. Reading them from a file is the business of `receivers`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import urlsplit

from rlscope.alerts.durations import parse_duration
from rlscope.alerts.source import Place, RuleSource
from rlscope.analysis.result import SEVERITIES, Severity
from rlscope.errors import RuleError, SecretError


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The value of a variable."""

    variable: str

    def reveal(self, environment: Mapping[str, str] = os.environ) -> str:
        """The secret. Raises SecretError when the variable is not set, or empty."""
        value = environment.get(self.variable, "").strip()
        if not value:
            raise SecretError.of(
                f"${self.variable}", found="nothing", expected="the secret", next_step="Set it where the watch runs."
            )
        return value

    def __str__(self) -> str:
        return f"${self.variable}"


@dataclass(frozen=True, slots=True)
class FromFile:
    """The text of a file, without the white space around it; read anew each time, so that it can be rotated."""

    path: Path

    def reveal(self) -> str:
        """The secret. Raises SecretError when the file cannot be read, or is empty."""
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
        return SecretError.of(self.path, found=found, expected="a secret", next_step="Write it there, readable to you.")


@dataclass(frozen=True, slots=True)
class InTheOpen:
    """A value that the rules hold themselves, because it is no secret."""

    value: str = field(repr=False)

    def reveal(self) -> str:
        """The value."""
        return self.value

    def __str__(self) -> str:
        # What a person took for public may still be a secret.
        return "an address in the rules"


Source = FromEnvironment | FromFile | InTheOpen


ReceiverKind = Literal["webhook", "alertmanager", "slack", "apprise", "command"]
KINDS: Final[tuple[ReceiverKind, ...]] = ("webhook", "alertmanager", "slack", "apprise", "command")

TIMEOUT_S: Final = 10.0
"""Longer than any healthy receiver takes, shorter than two looks at a run."""
GROUP_INTERVAL_S: Final = 30.0
"""What comes up together is told together: one message, not five."""
ALERTMANAGER_REPEAT_S: Final = 60.0
"""Alertmanager takes an alert for resolved once its end has passed, so what fires is posted again and again."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver of notifications."""

    name: str
    kind: ReceiverKind
    address: Source | None = None
    """Where to post; None for a command."""
    argv: tuple[str, ...] = ()
    """The command and its arguments; empty for every other kind."""
    token: Source | None = None
    """Sent as a bearer token; None sends none."""
    severity: Severity = "info"
    """The least grave alert that is sent."""
    group_by: tuple[str, ...] = ("alertname",)
    """Alerts that agree in these labels share a message; `alertname` is the rule."""
    timeout_s: float = TIMEOUT_S
    group_interval_s: float = GROUP_INTERVAL_S
    """Least time between two messages about one group."""
    repeat_s: float | None = None
    """How often what still fires is sent again; None is once."""
    send_resolved: bool = True
    max_alerts: int = 100
    """Most alerts in a message; the rest is counted in it."""


_COMMON: Final = ("name", "kind", "severity", "group_by", "timeout", "group_interval", "repeat", "send_resolved",
                  "max_alerts")  # fmt: skip
_ADDRESS: Final = ("url_env", "url_file")
_TOKEN: Final = ("token_env", "token_file")
_KEYS: Final[Mapping[ReceiverKind, tuple[str, ...]]] = {
    "webhook": (*_COMMON, "url", *_ADDRESS, *_TOKEN),
    "alertmanager": (*_COMMON, "url", *_ADDRESS, *_TOKEN),
    "slack": (*_COMMON, *_ADDRESS),
    "apprise": (*_COMMON, *_ADDRESS),
    "command": (*_COMMON, "command"),
}
"""The address of Slack and of apprise's services is itself the secret, so it has no `url`."""
_NEXT: Final = "docs/watch.md shows receivers."
# A segment as long as this with digits among its letters is how services write the secret part of an address.
_TOKEN_LIKE: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_\-.~%]{16,}")


def receivers_of(source: RuleSource) -> tuple[Receiver, ...]:
    """The receivers of a document; none where it names none. Raises RuleError."""
    raw = source.document.get("receivers", [])
    if not isinstance(raw, list):
        raise _wrong(source, ("receivers",), type(raw).__name__, "a list of tables, each headed [[receivers]]")
    tables = cast("list[object]", raw)
    receivers = tuple(_receiver(source, ("receivers", index), table) for index, table in enumerate(tables))
    names = [receiver.name for receiver in receivers]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise _wrong(source, ("receivers", index, "name"), repr(name), "a name of its own for every receiver")
    return receivers


def _receiver(source: RuleSource, place: Place, raw: object) -> Receiver:
    if not isinstance(raw, dict):
        raise _wrong(source, place, type(raw).__name__, "a table with the entries of a receiver")
    table = cast("Mapping[str, object]", raw)
    kind = cast("ReceiverKind", _choice(source, place, table, "kind", KINDS, None))
    for key in table:
        if key not in _KEYS[kind]:
            raise _refused_key(source, (*place, key), key, kind)
    group_by = _texts(source, (*place, "group_by"), table.get("group_by", ["alertname"]))
    is_alertmanager = kind == "alertmanager"
    repeat_s = _seconds(source, place, table, "repeat", ALERTMANAGER_REPEAT_S if is_alertmanager else None)
    # Alertmanager groups by itself, and wants to hear of everything at once.
    interval_s = _seconds(source, place, table, "group_interval", 0.0 if is_alertmanager else GROUP_INTERVAL_S)
    timeout_s = _seconds(source, place, table, "timeout", TIMEOUT_S)
    if not timeout_s:
        raise _wrong(source, (*place, "timeout"), "0s", "more than nothing")
    return Receiver(
        name=_text(source, place, table, "name"),
        kind=kind,
        address=None if kind == "command" else _address(source, place, table),
        argv=_texts(source, (*place, "command"), table.get("command")) if kind == "command" else (),
        token=_secret(source, place, table, _TOKEN),
        severity=cast("Severity", _choice(source, place, table, "severity", SEVERITIES, "info")),
        group_by=() if is_alertmanager and "group_by" not in table else group_by,
        timeout_s=timeout_s,
        group_interval_s=interval_s or 0.0,
        repeat_s=repeat_s,
        send_resolved=_flag(source, place, table, "send_resolved", True),
        max_alerts=_count(source, place, table, "max_alerts", 100),
    )


def _address(source: RuleSource, place: Place, table: Mapping[str, object]) -> Source:
    given = [key for key in ("url", *_ADDRESS) if key in table]
    if len(given) != 1:
        raise _wrong(source, place, " and ".join(given) or "no address", "one of url_env, url_file and url")
    if given != ["url"]:
        return cast("Source", _secret(source, place, table, _ADDRESS))
    where = (*place, "url")
    url = _text(source, place, table, "url", quoted=False)
    if not _is_http(url):
        raise _wrong(source, where, "an address of another kind", "an http or https URL")
    if holds_secret(url):
        raise _wrong(source, where, "an address that seems to hold a secret", "it under url_env or url_file")
    return InTheOpen(url)


def holds_secret(url: str) -> bool:
    """Whether an address has a user, a query, a fragment, or a part of its path that reads like a token."""
    parts = urlsplit(url)
    tokens = any(_TOKEN_LIKE.fullmatch(segment) for segment in parts.path.split("/"))
    return bool(parts.username or parts.password or "@" in parts.netloc or parts.query or parts.fragment) or tokens


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _secret(source: RuleSource, place: Place, table: Mapping[str, object], keys: tuple[str, str]) -> Source | None:
    """What the first key names a variable for, or the second a file; None with neither."""
    if all(key in table for key in keys):
        raise _wrong(source, place, f"both {keys[0]} and {keys[1]}", "one of them")
    if keys[0] in table:
        variable = _text(source, place, table, keys[0], quoted=False)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise _wrong(source, (*place, keys[0]), "what is no name of a variable", "the name, not the secret itself")
        return FromEnvironment(variable)
    if keys[1] in table:
        # Beside the file of rules, wherever the watch was started.
        return FromFile(Path(source.name).parent / _text(source, place, table, keys[1], quoted=False))
    return None


def _seconds(
    source: RuleSource, place: Place, table: Mapping[str, object], key: str, default_s: float | None
) -> float | None:
    if key not in table:
        return default_s
    value = table[key]
    try:
        return parse_duration(value if isinstance(value, str) else "") / 1e9
    except ValueError as error:
        raise _wrong(source, (*place, key), repr(value), str(error)) from None


def _choice(
    source: RuleSource, place: Place, table: Mapping[str, object], key: str, known: Sequence[str], default: str | None
) -> str:
    value = table.get(key, default)
    if value not in known:
        found = "nothing" if value is None else repr(value)
        raise _wrong(source, (*place, key) if key in table else place, found, f"{key}: one of {', '.join(known)}")
    return str(value)


def _text(source: RuleSource, place: Place, table: Mapping[str, object], key: str, *, quoted: bool = True) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        found = "nothing" if value is None else repr(value) if quoted else "no text"
        raise _wrong(source, (*place, key) if key in table else place, found, f"a text for {key}")
    return value


def _texts(source: RuleSource, place: Place, value: object) -> tuple[str, ...]:
    texts = cast("list[object]", value) if isinstance(value, list) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise _wrong(source, place, "something else", "a list of texts, such as ['one', 'two']")
    return tuple(cast("list[str]", texts))


def _flag(source: RuleSource, place: Place, table: Mapping[str, object], key: str, default: bool) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise _wrong(source, (*place, key), repr(value), "true or false")
    return value


def _count(source: RuleSource, place: Place, table: Mapping[str, object], key: str, default: int) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(source, (*place, key), repr(value), "a whole number, at least 1")
    return value


def _refused_key(source: RuleSource, place: Place, key: str, kind: ReceiverKind) -> RuleError:
    near = get_close_matches(key, _KEYS[kind], n=1)
    why = f"Did you mean {near[0]!r}?" if near else _NEXT
    if key == "url":
        why = f"The address of {kind} is a secret: name a variable in url_env, or a file in url_file."
    return RuleError.of(
        source.at(place),
        found=f"key {key!r}, which a receiver of kind {kind} does not have",
        expected="one of " + ", ".join(_KEYS[kind]),
        next_step=why,
    )


def _wrong(source: RuleSource, place: Place, found: str, expected: str) -> RuleError:
    return RuleError.of(source.at(place), found=found, expected=expected, next_step=_NEXT)
