"""One POST of JSON: with a time limit, without following redirects, and with failures in words of our own.

An address may hold a secret in any of its parts, so no text of a library that could quote it is passed on.
"""

import base64
import http.client
import json
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from rlscope.alerts.notify.message import DeliveryError

# Longer ones are taken for a mistake of the receiver: an hour without news of a failing run is long.
_LONGEST_RETRY_AFTER_S: Final = 3600.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirect would carry the token to wherever the answer says.
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def post_json(address: str, body: object, *, timeout_s: float, token: str | None = None) -> None:
    """Post a body; raises DeliveryError unless the answer is 2xx. timeout_s limits each wait for the receiver."""
    request = _request(address, json.dumps(body, allow_nan=False).encode(), token)
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=timeout_s):
            pass
    except urllib.error.HTTPError as error:
        with error:
            raise DeliveryError(f"it answered HTTP {error.code}", _retry_after_s(error)) from None
    except urllib.error.URLError as error:
        raise DeliveryError(_words(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryError(_words(error)) from None
    except ValueError:  # Its text quotes a header or a host name.
        raise DeliveryError("its address or its token cannot be sent over HTTP") from None


def _request(address: str, body: bytes, token: str | None) -> urllib.request.Request:
    parts = _checked(address)
    headers = {"Content-Type": "application/json", "User-Agent": "rlscope"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="")
    return urllib.request.Request(bare.geturl(), data=body, headers=headers, method="POST")


def _checked(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or not address.isascii() or any(char.isspace() or not char.isprintable() for char in address):
        raise DeliveryError("its address is no http or https URL")
    return urlsplit(address)


def _retry_after_s(error: urllib.error.HTTPError) -> float | None:
    """The seconds that the answer asks for; a date, or none, is None."""
    asked = error.headers.get("Retry-After", "").strip()
    return min(float(asked), _LONGEST_RETRY_AFTER_S) if asked.isdecimal() else None


def _words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    if isinstance(reason, ConnectionRefusedError):
        return "the connection was refused"
    # The system's own sentence for an error number quotes nothing.
    if isinstance(reason, OSError) and reason.strerror and type(reason).__module__ in ("builtins", "socket"):
        return f"it cannot be reached ({reason.strerror})"
    return f"it cannot be reached ({type(reason).__name__})"
