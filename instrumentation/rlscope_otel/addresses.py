"""Addresses of folders in object stores: which ones there can be. Loads no client, so that the host need not."""

import re
from typing import Final

SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "file")


def address_fault(address: str) -> str | None:
    """Why this cannot be the address of a folder to copy to, without what is secret in it; None if it can."""
    scheme, found, rest = address.partition("://")
    if not found:
        return "no address"
    if scheme not in SCHEMES:
        return f"an address of the scheme {scheme[:20]}"
    if not rest.strip("/"):
        return "an address without a folder"
    # A secret may hold slashes and question marks; the name of a bucket holds no colon.
    if not scheme.startswith("abfs") and re.match(r"[^/?]*@|[^/@?]*:.*@", rest):
        return "an address that holds credentials"
    return None
