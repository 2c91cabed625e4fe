"""Copies a run in an object store, such as s3://bucket/run, to this machine for analysis.

pyarrow provides the clients for S3, Google Cloud Storage and Azure. They find credentials themselves, in environment
variables, profiles or the machine's role. Credentials are never part of an address, a message or a file.
"""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING, Final, NamedTuple

from rlscope_otel.journal import SUFFIX
from rlscope_otel.object_store import holds_credentials, opened, without_secrets
from rlscope_otel.schema import TABLES

from rlscope import format as fmt
from rlscope.errors import ArgumentError, LimitError, RlscopeError, RunFolderError
from rlscope.trace.manifest import RUN_FILE

if TYPE_CHECKING:
    from pyarrow import fs

LARGEST_BYTES: Final = 50 * 10**9
"""Maximum total size of a run to copy."""
_SPARE_RATIO: Final = 1.1
"""Required free space as a multiple of the size to copy."""
_AT_ONCE: Final = 16
"""Files that are copied concurrently: each copy mostly waits for the store."""
_REQUEST_TIMEOUT_S: Final = 60.0
_TRIES: Final = 3
"""Maximum attempts to list and copy: a recorder may replace a journal by its Parquet file between the two."""
_ADDRESS: Final = re.compile(r"(s3|gs|gcs|abfss?):/{1,2}(?=[^/])")
_EXPECTED: Final = "a readable run folder"
_CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    r"NO_SUCH_BUCKET|NoSuchBucket|Bucket '.*' not found|Not a valid bucket name": (
        "no such bucket",
        "Check its name, and AWS_ENDPOINT_URL if the store is not AWS.",
    ),
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|HTTP (status|response) 40[13]": (
        "access denied",
        "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for an account that may list and read it.",
    ),
    r"NETWORK_CONNECTION|curlCode|Couldn't (connect|resolve)|ENDPOINT_RESOLUTION|timed? ?out": (
        "no connection to the store",
        "Check the network, and AWS_ENDPOINT_URL if the store is not AWS.",
    ),
}
"""Meaning and remedy of a client's message, by a pattern in it."""


class _Object(NamedTuple):
    """A file in the store."""

    path: str
    name: str
    """Path in the run folder."""
    bytes: int


def is_remote(path: str | Path) -> bool:
    """Return whether a path is an address in an object store. A Path keeps only one slash after the colon."""
    return _ADDRESS.match(str(path)) is not None


def shown_address(address: str | Path) -> str:
    """Return an address that is safe to print: without parameters, and without a user or a secret before the host."""
    url = _ADDRESS.sub(r"\1://", str(address), count=1)
    # A secret may contain slashes and question marks; a bucket name contains no colon.
    return re.sub(r"//(?:[^/:@?]*:.*|[^/@?]*)@", "//***@", url).partition("?")[0]


def fetch_run(address: str | Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Copy the files of a run to a new temporary folder, which the caller must remove.

    Raises RunFolderError if there is no run or no access to it, ArgumentError if the address contains credentials, and
    LimitError if the run is too large to copy.
    """
    url, shown = _ADDRESS.sub(r"\1://", str(address), count=1), shown_address(address)
    if holds_credentials(url):
        raise ArgumentError.of(
            shown,
            found="credentials in the address",
            expected="an address without credentials",
            next_step="Set the variables that the store's client reads, such as AWS_PROFILE or AZURE_STORAGE_KEY, "
            "and rotate that secret: addresses end up in shell histories and logs.",
        )
    folder = Path(mkdtemp(prefix="rlscope-remote-"))
    try:
        _copy(url, shown, folder, say)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError | ValueError) and not isinstance(error, RlscopeError):
            raise _explained(shown, error) from None
        raise
    return folder


def _copy(url: str, shown: str, folder: Path, say: Callable[[str], None]) -> None:
    say(f"opening {shown}")
    store, base = opened(url, request_timeout=_REQUEST_TIMEOUT_S)
    # Copy the worker files first, so that every file that they count is listed afterwards.
    beside = [each for each in _listed(store, base, ("", "workers")) if _is_stated(each.name)]
    if RUN_FILE not in {each.name for each in beside}:
        raise RunFolderError.of(
            shown,
            found="no run.json",
            expected="the folder of a run, which holds run.json, workers/ and a folder per table",
            next_step="Pass the folder that RLSCOPE_RUN_DIR was set to, or the address it was copied to.",
        )
    _fetch(store, beside, folder, shown, say)
    for _ in range(_TRIES):
        tables = [each for each in _listed(store, base, tuple(TABLES)) if each.name.endswith((".parquet", SUFFIX))]
        wanted = [each for each in tables if not (folder / each.name).exists()]
        _check_size(shown, tables)
        if not _fetch(store, wanted, folder, shown, say):
            return
    raise RunFolderError.of(
        shown,
        found="files that vanish while they are copied",
        expected="a run whose files stay until they are copied",
        next_step="Try again; a recorder may have been closing its journals.",
    )


def _is_stated(name: str) -> bool:
    return name == RUN_FILE or (name.startswith("workers/") and name.endswith(".json"))


def _listed(store: "fs.FileSystem", base: str, folders: Sequence[str]) -> list[_Object]:
    """Return the files directly in these folders of the run; subfolders are not read."""
    from pyarrow import fs

    found: list[_Object] = []
    for folder in folders:
        selector = fs.FileSelector(f"{base}/{folder}" if folder else base, allow_not_found=bool(folder))
        for each in store.get_file_info(selector):
            if each.type == fs.FileType.File and PurePosixPath(each.base_name).name == each.base_name:
                found.append(_Object(each.path, f"{folder}/{each.base_name}".lstrip("/"), each.size or 0))
    return found


def _check_size(shown: str, files: Sequence[_Object]) -> None:
    size, free = sum(each.bytes for each in files), shutil.disk_usage(gettempdir()).free
    if size > LARGEST_BYTES or size * _SPARE_RATIO > free:
        most = f"at most {fmt.size(LARGEST_BYTES)}"
        limit = most if size > LARGEST_BYTES else f"a run that fits in the free {fmt.size(free)}"
        raise LimitError.of(
            shown,
            found=f"{len(files):,} files of {fmt.size(size)}",
            expected=f"{limit}, because the files are copied to this machine",
            next_step="Set TMPDIR to a larger disk, or copy the run yourself and analyze the copy.",
        )


def _fetch(
    store: "fs.FileSystem", files: Sequence[_Object], folder: Path, shown: str, say: Callable[[str], None]
) -> list[str]:
    """Copy files concurrently; return the names of those that had vanished. Raises OSError."""
    total, copied, gone = sum(each.bytes for each in files), 0, list[str]()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = {pool.submit(_fetch_one, store, each, folder): each for each in files}
        try:
            for done in as_completed(waiting):
                if not done.result():
                    gone.append(waiting[done].name)
                copied += waiting[done].bytes
                say(f"copying {shown}: {fmt.size(copied)} of {fmt.size(total)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return gone


def _fetch_one(store: "fs.FileSystem", file: _Object, folder: Path) -> bool:
    target = folder / file.name
    target.parent.mkdir(exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    try:
        with store.open_input_stream(file.path) as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    except FileNotFoundError:
        part.unlink(missing_ok=True)
        return False
    part.replace(target)
    return True


def _explained(shown: str, error: Exception) -> RunFolderError:
    """Return the error for a client's message, without any secrets in it."""
    text = str(error)
    for pattern, (cause, remedy) in _CAUSES.items():
        if re.search(pattern, text):
            return RunFolderError.of(shown, found=cause, expected=_EXPECTED, next_step=remedy)
    found = "nothing" if isinstance(error, FileNotFoundError) else without_secrets(text)
    return RunFolderError.of(shown, found=found, expected=_EXPECTED, next_step="Check the address.")
