"""The settings of a run: arguments first, then environment variables. Invalid values raise SetupError.

An empty variable counts as unset, so that a launcher can keep a child process from inheriting it.

| variable | argument |
|---|---|
| RLSCOPE_RUN_DIR | run_dir: without it the run is inert |
| RLSCOPE_ROLE | role |
| RLSCOPE_WORKER_ID | worker_id: `<role>-<host>-<pid>` when neither is given |
| RLSCOPE_GPU_COUNT | gpu_count |
| RLSCOPE_GPU_INTERVAL_S | gpu_interval_s |
| RLSCOPE_UPLOAD | upload_to: an object store to copy the files to |
"""

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qsl, unquote

from rlscope_otel import schema
from rlscope_otel.errors import SetupError
from rlscope_otel.worker_file import Identity

RUN_DIR_VARIABLE = "RLSCOPE_RUN_DIR"
ROLE_VARIABLE = "RLSCOPE_ROLE"
WORKER_ID_VARIABLE = "RLSCOPE_WORKER_ID"
GPU_COUNT_VARIABLE = "RLSCOPE_GPU_COUNT"
GPU_INTERVAL_VARIABLE = "RLSCOPE_GPU_INTERVAL_S"
UPLOAD_VARIABLE = "RLSCOPE_UPLOAD"

_SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "file")
_SECRET_NAME: Final = re.compile("key|secret|token|sig|pass|credential", re.IGNORECASE)
"""Matches names of parameters that may hold a secret."""

_Number = TypeVar("_Number", int, float)

# Leaves room for the suffix of a restarted worker within the 128 characters of the format.
_DEFAULT_ID_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Limits:
    """Intervals and limits of writing. Raises SetupError unless all are positive."""

    flush_interval_s: float
    max_rows_per_batch: int
    """A buffer of so many rows is written at once."""
    max_buffered_rows: int
    """Maximum rows in memory per table."""
    max_journal_bytes: int = 32 * 2**20
    """Size at which a journal is closed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                next_step = f"Omit {field.name} to use the default."
                raise SetupError.unknown_value(field.name, value, ["more than 0"], next_step)


def _address_fault(address: str) -> str | None:
    """Return the reason that this is not the address of a folder to copy to, without secrets. None if it is valid."""
    scheme, found, rest = address.partition("://")
    if not found:
        return "no address"
    if scheme not in _SCHEMES:
        return f"an address of the scheme {scheme[:20]}"
    if not rest.strip("/"):
        return "an address without a folder"
    return "an address that holds credentials" if _holds_credentials(scheme, rest) else None


def _holds_credentials(scheme: str, rest: str) -> bool:
    """Return whether the address names a user or a secret before the host, or in a parameter."""
    rest = unquote(rest)
    # A secret may hold slashes and question marks; the name of a bucket holds no colon.
    if re.match(r"[^/@?]*:.*@", rest):
        return True
    # In Azure's addresses the container stands before the @.
    if not scheme.startswith("abfs") and re.match(r"[^/?]*@", rest):
        return True
    parameters = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    return any("@" in value or _SECRET_NAME.search(name) for name, value in parameters)


@dataclass(frozen=True, slots=True)
class Upload:
    """Destination and interval of the copy. Raises SetupError if the address is invalid."""

    address: str
    interval_s: float

    def __post_init__(self) -> None:
        fault = _address_fault(self.address)
        if fault is not None:
            expected = [f"{', '.join(f'{scheme}://' for scheme in _SCHEMES)} and the path of a folder"]
            next_step = f"Set {UPLOAD_VARIABLE} or upload_to. Clients find credentials in the environment."
            raise SetupError.unknown_value("upload_to", fault, expected, next_step)
        if not self.interval_s > 0:
            raise SetupError.unknown_value("upload_interval_s", self.interval_s, ["more than 0"], "Omit it.")


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a recording needs before it starts."""

    run_dir: Path
    worker_id: str
    identity: Identity
    run_id: str | None
    config: Mapping[str, object]
    limits: Limits
    gpu_interval_s: float | None
    """Seconds between GPU samples. None does not sample the GPUs."""
    upload: Upload | None = None


def run_dir_of(run_dir: str | os.PathLike[str] | None) -> Path | None:
    """The run folder as an absolute path, since the host may change its working directory; None when unset."""
    found = os.fspath(run_dir) if run_dir is not None else os.environ.get(RUN_DIR_VARIABLE, "")
    return Path(found).absolute() if found else None


def upload_of(upload_to: str | None, interval_s: float) -> Upload | None:
    """Return the destination of the copy. None if the files are not copied."""
    address = upload_to if upload_to is not None else os.environ.get(UPLOAD_VARIABLE)
    return Upload(address, interval_s) if address else None


def name_of(worker_id: str | None, role: str, upload: Upload | None) -> str:
    """The worker's name. One whose files are copied gets a name that no worker of another node has.

    Raises SetupError as `worker_id_of` does.
    """
    name = worker_id_of(worker_id, role)
    return name if upload is None else f"{name[:_DEFAULT_ID_CHARACTERS]}.{secrets.token_hex(3)}"


def role_of(role: str | None) -> str:
    """The role from the argument or the environment. Raises SetupError when it is not one of the format's."""
    found = role if role is not None else os.environ.get(ROLE_VARIABLE) or None
    if found not in schema.ROLES:
        raise SetupError.unknown_value("role", found, schema.ROLES, f"Pass role= or set {ROLE_VARIABLE}.")
    return found


def worker_id_of(worker_id: str | None, role: str) -> str:
    """The worker's name. Raises SetupError when it cannot be a file name of the format."""
    found = worker_id if worker_id is not None else os.environ.get(WORKER_ID_VARIABLE) or None
    if found is None:
        name = f"{role}-{socket.gethostname()}-{os.getpid()}"
        return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:_DEFAULT_ID_CHARACTERS]
    if not re.fullmatch(schema.WORKER_ID_PATTERN, found):
        expected = [f"a name that matches {schema.WORKER_ID_PATTERN}"]
        raise SetupError.unknown_value("worker_id", found, expected, f"Pass worker_id= or set {WORKER_ID_VARIABLE}.")
    return found


def gpu_count_of(gpu_count: int | None, gpu_ids: tuple[str, ...], role: str) -> int:
    """GPUs that this process owns: gpu_count, else one per GPU id, else one, or none for a controller."""
    if gpu_count is None:
        gpu_count = _number(GPU_COUNT_VARIABLE, int)
    if gpu_count is None:
        gpu_count = len(gpu_ids) or (0 if role == "controller" else 1)
    if gpu_count < 0:
        raise SetupError.unknown_value(
            "gpu_count", gpu_count, ["0 or more"], f"Pass gpu_count= or {GPU_COUNT_VARIABLE}."
        )
    return gpu_count


def gpu_interval_of(gpu_interval_s: float | None) -> float | None:
    """Seconds between GPU samples; None or 0 for no sampling."""
    return (_number(GPU_INTERVAL_VARIABLE, float) if gpu_interval_s is None else gpu_interval_s) or None


def _number(variable: str, kind: type[_Number]) -> _Number | None:
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise SetupError.unknown_value(variable, text, [f"a number ({kind.__name__})"], "Set or unset it.") from None
