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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rlscope_otel import schema
from rlscope_otel.errors import SetupError
from rlscope_otel.object_store import holds_credentials
from rlscope_otel.worker_file import Identity

RUN_DIR_VARIABLE = "RLSCOPE_RUN_DIR"
ROLE_VARIABLE = "RLSCOPE_ROLE"
WORKER_ID_VARIABLE = "RLSCOPE_WORKER_ID"
GPU_COUNT_VARIABLE = "RLSCOPE_GPU_COUNT"
GPU_INTERVAL_VARIABLE = "RLSCOPE_GPU_INTERVAL_S"
UPLOAD_VARIABLE = "RLSCOPE_UPLOAD"

_SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "file")

_Number = TypeVar("_Number", int, float)

# Leaves room for the suffix of a restarted worker within the 128 characters of the format.
_DEFAULT_ID_CHARACTERS = 120


def _address_fault(address: str) -> str | None:
    """Return the reason that this is not the address of a folder to copy to, without secrets. None if it is valid."""
    scheme, found, rest = address.partition("://")
    if not found:
        return "no address"
    if scheme not in _SCHEMES:
        return f"an address of the scheme {scheme[:20]}"
    if not rest.strip("/"):
        return "an address without a folder"
    return "an address that holds credentials" if holds_credentials(address) else None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a recording needs before it starts."""

    run_dir: Path
    worker_id: str
    identity: Identity
    run_id: str | None
    config: Mapping[str, object]
    flush_interval_s: float
    gpu_interval_s: float | None
    """Seconds between GPU samples. None does not sample the GPUs."""
    upload_to: str | None = None
    """Address that the files are copied to."""


def run_dir_of(run_dir: str | os.PathLike[str] | None) -> Path | None:
    """The run folder as an absolute path, since the host may change its working directory; None when unset."""
    found = os.fspath(run_dir) if run_dir is not None else os.environ.get(RUN_DIR_VARIABLE, "")
    return Path(found).absolute() if found else None


def flush_interval_of(flush_interval_s: float) -> float:
    """Seconds between flushes. Raises SetupError unless that is more than 0."""
    if not flush_interval_s > 0:
        next_step = "Omit flush_interval_s to use the default."
        raise SetupError.unknown_value("flush_interval_s", flush_interval_s, ["more than 0"], next_step)
    return flush_interval_s


def upload_of(upload_to: str | None) -> str | None:
    """Return the address to copy to; None if the files are not copied. Raises SetupError if it is invalid."""
    address = (upload_to if upload_to is not None else os.environ.get(UPLOAD_VARIABLE)) or None
    fault = None if address is None else _address_fault(address)
    if fault is not None:
        expected = [f"{', '.join(f'{scheme}://' for scheme in _SCHEMES)} and the path of a folder"]
        next_step = f"Set {UPLOAD_VARIABLE} or upload_to. Clients find credentials in the environment."
        raise SetupError.unknown_value("upload_to", fault, expected, next_step)
    return address


def role_of(role: str | None) -> str:
    """The role from the argument or the environment. Raises SetupError when it is not one of the format's."""
    found = role if role is not None else os.environ.get(ROLE_VARIABLE) or None
    if found not in schema.ROLES:
        raise SetupError.unknown_value("role", found, schema.ROLES, f"Pass role= or set {ROLE_VARIABLE}.")
    return found


def worker_id_of(worker_id: str | None, role: str, *, is_copied: bool) -> str:
    """The worker's name. One whose files are copied gets a name that no worker of another node has.

    Raises SetupError when it cannot be a file name of the format.
    """
    found = worker_id if worker_id is not None else os.environ.get(WORKER_ID_VARIABLE) or None
    if found is None:
        name = f"{role}-{socket.gethostname()}-{os.getpid()}"
        found = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:_DEFAULT_ID_CHARACTERS]
    elif not re.fullmatch(schema.WORKER_ID_PATTERN, found):
        expected = [f"a name that matches {schema.WORKER_ID_PATTERN}"]
        raise SetupError.unknown_value("worker_id", found, expected, f"Pass worker_id= or set {WORKER_ID_VARIABLE}.")
    return f"{found[:_DEFAULT_ID_CHARACTERS]}.{secrets.token_hex(3)}" if is_copied else found


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
