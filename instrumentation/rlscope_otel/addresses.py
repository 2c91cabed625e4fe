"""Valid addresses of folders in object stores. Imports no client, so that the host does not have to."""

import re
from typing import Final
from urllib.parse import parse_qsl, unquote

SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "file")
_SECRET_NAME: Final = re.compile("key|secret|token|sig|pass|credential", re.IGNORECASE)
"""Matches names of parameters that may hold a secret."""


def address_fault(address: str) -> str | None:
    """Return the reason that this is not the address of a folder to copy to, without secrets. None if it is valid."""
    scheme, found, rest = address.partition("://")
    if not found:
        return "no address"
    if scheme not in SCHEMES:
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
