"""A folder in an object store, or on another file system, by its address. Files are put whole or not at all.

pyarrow provides the clients (S3, Google Cloud Storage, Azure). They take credentials from environment variables,
profiles or the role of the machine.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

import os
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from pyarrow import fs

_CONNECT_TIMEOUT_S: Final = 10.0
_REQUEST_TIMEOUT_S: Final = 30.0


class ObjectStore:
    """The folder."""

    def __init__(self, address: str) -> None:
        """Raises OSError or ValueError, from the client, for a store that cannot be opened."""
        parts = urlsplit(address)
        self._is_local = parts.scheme == "file"
        if parts.scheme == "s3":
            self._store, self._base = _s3(parts.netloc, dict(parse_qsl(parts.query))), parts.netloc + parts.path
        else:
            self._store, self._base = fs.FileSystem.from_uri(address)
        self._base = self._base.rstrip("/")

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
        selector = fs.FileSelector(f"{self._base}/{folder}", allow_not_found=True)
        return [each.base_name for each in self._store.get_file_info(selector) if each.type == fs.FileType.File]


def _s3(bucket: str, given: dict[str, str]) -> fs.FileSystem:
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")
    endpoint, region = (
        given.get(name) or next(filter(None, map(os.environ.get, names)), None)
        for name, names in zip(("endpoint_override", "region"), variables, strict=True)
    )
    if region is None:
        region = "us-east-1" if endpoint else fs.resolve_s3_region(bucket)
    options: dict[str, object] = {
        "region": region,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "request_timeout": _REQUEST_TIMEOUT_S,
        # No retries here: the next round copies what failed, together with newer files.
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=1),
        **({"endpoint_override": endpoint} if endpoint else {}),
    }
    try:
        # A small file in one request, not three.
        return fs.S3FileSystem(**options, allow_delayed_open=True)
    except TypeError:  # A pyarrow that is too old for it.
        return fs.S3FileSystem(**options)
