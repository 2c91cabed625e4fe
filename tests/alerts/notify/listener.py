"""A receiver of alerts on loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.serving import serving


@dataclass
class Listener:
    """A receiver on loopback: what it was sent, and with which statuses it answers next (200 when it has none left)."""

    url: str = ""
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with each answer."""
    hold: threading.Event | None = None
    """Answers wait for it."""
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        return [request["body"] for request in self.requests]


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            listener.requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
            if listener.hold is not None:
                listener.hold.wait(20)
            self.send_response(listener.answers.pop(0) if listener.answers else 200)
            for name, value in listener.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as listener.url:
        try:
            yield listener
        finally:
            if listener.hold is not None:
                listener.hold.set()
