"""A folder in an object store, or on another file system, by its address. Files are put whole or not at all.

pyarrow provides the clients (S3, Google Cloud Storage, Azure). They take credentials from environment variables,
profiles or the role of the machine.
"""

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

# Where an address is only checked, the clients are not loaded.
if TYPE_CHECKING:
    from pyarrow import fs

_CONNECT_TIMEOUT_S: Final = 10.0
_REQUEST_TIMEOUT_S: Final = 30.0
_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AZURE_STORAGE_KEY")
_SECRET_NAME: Final = re.compile("key|secret|token|sig|pass|credential", re.IGNORECASE)
"""Matches names of parameters that may hold a secret."""


def holds_credentials(address: str) -> bool:
    """Return whether an address names a user or a secret before the host, or in a parameter."""
    scheme, _, rest = unquote(address).partition("://")
    # A secret may hold slashes and question marks; the name of a bucket holds no colon.
    if re.match(r"[^/@?]*:.*@", rest):
        return True
    # In Azure's addresses the container stands before the @.
    if not scheme.startswith("abfs") and re.match(r"[^/?]*@", rest):
        return True
    parameters = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    return any("@" in value or _SECRET_NAME.search(name) for name, value in parameters)


def without_secrets(text: str) -> str:
    """Return a client's message without the credentials of the environment."""
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        text = text.replace(secret, "***")
    return text


class ObjectStore:
    """The folder."""

    def __init__(self, address: str) -> None:
        """Raises OSError or ValueError, from the client, for a store that cannot be opened."""
        from pyarrow import fs

        parts = urlsplit(address)
        self._is_local = parts.scheme == "file"
        self._store, base = _s3(parts) if parts.scheme == "s3" else fs.FileSystem.from_uri(address)
        self._base = base.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Store a file under a name, whatever was there. Raises OSError."""
        path = f"{self._base}/{name}"
        if not self._is_local:
            with self._store.open_output_stream(path) as target:
                target.write(data)
            return
        folder, _, own = path.rpartition("/")
        self._store.create_dir(folder, recursive=True)
        part = f"{folder}/.{own}.{os.getpid()}.part"
        with self._store.open_output_stream(part) as target:
            target.write(data)
        self._store.move(part, path)

    def get(self, name: str) -> bytes | None:
        """Return the content of a file. None if there is no such file. Raises OSError."""
        try:
            with self._store.open_input_stream(f"{self._base}/{name}") as source:
                return source.read()
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises OSError."""
        try:
            self._store.delete_file(f"{self._base}/{name}")
        except FileNotFoundError:
            return

    def names(self, folder: str) -> list[str]:
        """The names of the files right in a folder. Raises OSError."""
        from pyarrow import fs

        selector = fs.FileSelector(f"{self._base}/{folder}", allow_not_found=True)
        return [each.base_name for each in self._store.get_file_info(selector) if each.type == fs.FileType.File]


def _s3(address: SplitResult) -> "tuple[fs.FileSystem, str]":
    """Return the client of a bucket, and the folder's path. Raises OSError."""
    from pyarrow import fs

    given = dict(parse_qsl(address.query))
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")
    endpoint, region = (
        given.get(name) or next(filter(None, map(os.environ.get, names)), None)
        for name, names in zip(("endpoint_override", "region"), variables, strict=True)
    )
    options: dict[str, object] = {
        "region": region or ("us-east-1" if endpoint else fs.resolve_s3_region(address.netloc)),
        "endpoint_override": endpoint,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "request_timeout": _REQUEST_TIMEOUT_S,
        # No retries here: the next round copies what failed, together with newer files.
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=1),
    }
    try:
        # A small file in one request, not three.
        store = fs.S3FileSystem(**options, allow_delayed_open=True)
    except TypeError:  # A pyarrow that is too old for it.
        store = fs.S3FileSystem(**options)
    return store, f"{address.netloc}{address.path}"
