"""Readings of other hosts' clocks, as NTP takes them, for the worker file; and a small server that answers them.

Each round trip bounds the difference of two clocks, because requests and responses arrive after they are sent
(`docs/clocks.md`). The shorter the round trip, the tighter the bound.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

from rlscope_otel.faults import Faults

MOST_KEPT: Final = 256
"""Maximum samples of one worker. They are few, because the worker file is written with every flush."""
_LATEST_NS: Final = 1 << 62
_LONGEST_NAME: Final = 255
_TIMEOUT_S: Final = 5.0
_TRIPS: Final = 8
"""Round trips per reading. The shortest one counts."""
_QUESTION: Final = b"rlscope1"
_TIMES: Final = struct.Struct("<qqB")


class ClockSample(NamedTuple):
    """One round trip."""

    host: str
    """Name of the asked host, as in its worker files."""
    sent_ns: int
    heard_ns: int
    """Arrival of the request, by the clock of the asked host, as is `answered_ns`."""
    answered_ns: int
    received_ns: int

    @property
    def way_ns(self) -> int:
        """Total travel time of request and response."""
        return (self.received_ns - self.sent_ns) - (self.answered_ns - self.heard_ns)


def fault_of(sample: ClockSample) -> str | None:
    """Return the reason that a sample is invalid. None if it is valid."""
    # A host may pass anything.
    host, *times = cast("tuple[object, ...]", sample)
    if not isinstance(host, str) or not 0 < len(host) <= _LONGEST_NAME:
        return "host is no name"
    if not all(isinstance(time, int) and not isinstance(time, bool) and abs(time) < _LATEST_NS for time in times):
        return "a time is no whole number of nanoseconds"
    if sample.received_ns < sample.sent_ns or sample.answered_ns < sample.heard_ns:
        return "an answer before its question"
    return None


class ClockSamples:
    """Clock samples of one worker: a limited number, the most precise ones."""

    def __init__(self) -> None:
        self._samples: list[ClockSample] = []
        self._lock = threading.Lock()

    def add(self, sample: ClockSample) -> None:
        """Keep a sample. If there are too many, drop the one with the longer round trip of each two neighbors."""
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) > MOST_KEPT:
                self._samples = thinned(self._samples)

    def stated(self) -> list[dict[str, object]]:
        """Return the samples in the form of the worker file."""
        with self._lock:
            return [sample._asdict() for sample in self._samples]


def thinned(samples: Sequence[ClockSample]) -> list[ClockSample]:
    """Return half of the samples, spread over the run: the shorter round trip of each two neighbors of one host."""
    waiting: dict[str, ClockSample] = {}
    kept: list[ClockSample] = []
    for sample in samples:
        before = waiting.pop(sample.host, None)
        if before is None:
            waiting[sample.host] = sample
        else:
            kept.append(min(before, sample, key=lambda each: each.way_ns))
    return sorted([*kept, *waiting.values()], key=lambda each: each.sent_ns)


class ClockServer:
    """Server of a run's clock. It answers one connection after the other, on its own thread."""

    def __init__(self, now_ns: Callable[[], int], host: str, port: int, bind: str) -> None:
        """Raises OSError for a port that cannot be had."""
        self._now_ns = now_ns
        self._name = host.encode()[:_LONGEST_NAME]
        self._socket = socket.create_server((bind, port))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, name="rlscope-clock", daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._socket.accept()
            except OSError:
                return
            with asker, contextlib.suppress(OSError):
                asker.settimeout(_TIMEOUT_S)
                asker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._answer(asker)

    def _answer(self, asker: socket.socket) -> None:
        for _ in range(_TRIPS):
            if _received(asker, len(_QUESTION)) != _QUESTION:
                return
            heard_ns = self._now_ns()
            asker.sendall(_TIMES.pack(heard_ns, self._now_ns(), len(self._name)) + self._name)


def read_clock(address: tuple[str, int], now_ns: Callable[[], int]) -> ClockSample:
    """Return the shortest of several round trips. Raises OSError without an answer, ValueError for an invalid one."""
    with socket.create_connection(address, _TIMEOUT_S) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return min((_asked(server, now_ns) for _ in range(_TRIPS)), key=lambda each: each.way_ns)


def _asked(server: socket.socket, now_ns: Callable[[], int]) -> ClockSample:
    sent_ns = now_ns()
    server.sendall(_QUESTION)
    heard_ns, answered_ns, length = _TIMES.unpack(_received(server, _TIMES.size))
    received_ns = now_ns()
    sample = ClockSample(_received(server, length).decode(), sent_ns, heard_ns, answered_ns, received_ns)
    if fault := fault_of(sample):
        raise ValueError(fault)
    return sample


def _received(peer: socket.socket, length: int) -> bytes:
    text = b""
    while len(text) < length:
        chunk = peer.recv(length - len(text))
        if not chunk:
            raise ConnectionError("the connection ended before its answer")
        text += chunk
    return text


class ClockReader:
    """Reads the clock of a server at every interval, on a thread of its own."""

    def __init__(
        self,
        address: tuple[str, int],
        interval_s: float,
        now_ns: Callable[[], int],
        keep: Callable[[ClockSample], None],
        faults: Faults,
    ) -> None:
        self._of = address, now_ns
        self._interval_s = interval_s
        self._keep = keep
        self._faults = faults
        self._over = threading.Event()
        threading.Thread(target=self._read, name="rlscope-clock", daemon=True).start()

    def close(self) -> None:
        """Stop reading."""
        self._over.set()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                self._keep(read_clock(*self._of))
            except Exception as error:  # Any network failure: the next reading may succeed.
                self._faults.note("clock", error)
            self._over.wait(self._interval_s)
