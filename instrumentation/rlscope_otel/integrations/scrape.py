"""Records vLLM and SGLang engines that cannot be hooked, by polling their Prometheus metrics page.

`python -m rlscope_otel.integrations.scrape --url http://host:8000/metrics --run-dir RUN_DIR`, beside the engine.

Records, for each engine on the page, one row of engine_steps between two readings, marked as sampled: running and
waiting requests as last read, tokens from the difference of counters, and the worker's `kv_capacity_tokens`. If the
engine measures its own time (SGLang: forward passes, idle), that is used; else an engine with no request and no new
token in both readings is waiting for requests, and otherwise generating for the whole interval.

Not available this way, but with a hook: single samples, versions, weight updates, waits shorter than an interval, and,
with vLLM, the time between forward passes. A page that cannot be read, a counter that decreases (the engine was
restarted) or readings more than a second apart leave a gap, which counts as unattributed time.

Run against vLLM 0.32.0's own server on a CPU, and on a page rendered by SGLang 0.5.23's collector. Not run: a live
SGLang server, several data-parallel engines, multiprocess mode with several API servers.
"""

import argparse
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit

from rlscope_otel.errors import SetupError
from rlscope_otel.integrations.engine_readings import Reading, points_of, readings_of
from rlscope_otel.integrations.host import inert_run
from rlscope_otel.recorder import Run
from rlscope_otel.start import start_run

# The format lets no row of several passes be longer. Two readings are half of it apart, since one may be late.
LONGEST_WINDOW_NS: Final = 1_000_000_000
_INTERVAL_S = 0.5
_PAGE_S: Final = 1.0
# An engine renews its own sums of seconds once a second: they run behind or ahead of the readings by no more.
_LAG_NS: Final = 2_000_000_000
_PAGE_BYTES: Final = 1 << 24
_PIECE_BYTES: Final = 1 << 16

Fetch = Callable[[], str]
StartRun = Callable[[str, Reading], Run]


class _OwnTime:
    """A counter of seconds kept by the engine. Its growth is spread over windows, limited by the length of each."""

    def __init__(self) -> None:
        self._due_ns = 0

    def add(self, before_s: float | None, now_s: float | None) -> bool:
        """Add the growth of the counter. Returns False if the engine does not keep it."""
        if before_s is None or now_s is None:
            return False
        self._due_ns += round((now_s - before_s) * 1e9)
        return True

    def take(self, most_ns: int) -> int:
        """Take the time that is due, up to most_ns."""
        return self.spend(max(0, min(self._due_ns, most_ns)))

    def spend(self, spent_ns: int) -> int:
        """Count time from another source as taken. The counter may catch up later."""
        self._due_ns = max(-_LAG_NS, min(_LAG_NS, self._due_ns - spent_ns))
        return spent_ns


class _Engine:
    """One engine on the page, and the worker that it is recorded as."""

    def __init__(self, run: Run, reading: Reading) -> None:
        self.run = run
        # Not when the page was read: no row may begin before its worker.
        self._reading, self._time_ns = reading, run.now_ns()
        self._idle, self._busy = _OwnTime(), _OwnTime()

    def read(self, reading: Reading, time_ns: int) -> None:
        """Record the time since the last reading, or nothing if the readings do not allow it."""
        before, start_ns = self._reading, self._time_ns
        self._reading, self._time_ns = reading, time_ns
        if reading.is_restart_of(before):
            self.run.faults.note(
                "engine restart", "a counter decreased: the engine was restarted, and the interval is not recorded"
            )
        elif time_ns - start_ns > LONGEST_WINDOW_NS:
            self.run.faults.note(
                "scrape gap", f"{(time_ns - start_ns) / 1e9:.1f} s between two readings; the interval is not recorded"
            )
        else:
            # Where in the interval the engine was idle is unknown: it is placed at the end.
            busy_end_ns = time_ns - self._idle_ns(before, reading, time_ns - start_ns)
            self._record_passes(before, reading, start_ns, busy_end_ns)
            if busy_end_ns < time_ns:
                self.run.wait("requests").between(busy_end_ns, time_ns)

    def _idle_ns(self, before: Reading, now: Reading, most_ns: int) -> int:
        """Return the idle time between two readings."""
        counted = self._idle.add(before.idle_s, now.idle_s)
        if not (before.has_requests or now.has_requests or now.tokens > before.tokens):
            return self._idle.spend(most_ns)
        return self._idle.take(most_ns) if counted else 0

    def _record_passes(self, before: Reading, now: Reading, start_ns: int, end_ns: int) -> None:
        counts_busy = self._busy.add(before.busy_s, now.busy_s)
        if end_ns <= start_ns:
            return
        self.run.engine_step(
            start_ns,
            end_ns,
            busy_ns=self._busy.take(end_ns - start_ns) if counts_busy else None,
            forward_passes=_grown(before.passes, now.passes),
            running=now.running,
            waiting=now.waiting,
            decode_tokens=now.decode_tokens - before.decode_tokens,
            prefill_tokens=max(0, now.prefill_tokens - before.prefill_tokens),
            kv_used_tokens=now.kv_used_tokens,
            preemptions=_grown(before.preemptions, now.preemptions),
            source="sampled",
        )


def _grown(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else now - before


class Scraper:
    """Polls one page; each engine that appears on it becomes a worker."""

    def __init__(self, fetch: Fetch, start: StartRun, now_ns: Callable[[], int]) -> None:
        self._fetch, self._start, self._now_ns = fetch, start, now_ns
        self._engines: dict[str, _Engine] = {}

    def read(self) -> str | None:
        """One reading of every engine; what was wrong with the page, or None."""
        asked_ns = self._now_ns()
        try:
            readings = readings_of(points_of(self._fetch()))
        except (OSError, ValueError) as error:
            return str(error)
        # The engine rendered the page between the request and the response.
        time_ns = (asked_ns + self._now_ns()) // 2
        self._take(readings, time_ns)
        return None if readings else "no engine on the page: it has neither vllm: nor sglang: series"

    def stop(self) -> None:
        """End every engine's recording."""
        for engine in self._engines.values():
            engine.run.stop()

    def _take(self, readings: Mapping[str, Reading], time_ns: int) -> None:
        for name, reading in readings.items():
            if name in self._engines:
                self._engines[name].read(reading, time_ns)
            else:
                self._engines[name] = _Engine(self._start(name, reading), reading)


def main(arguments: Sequence[str] | None = None) -> int:
    """Scrape until interrupted. Returns exit code 1, with a message, if nothing can be recorded."""
    options = _parser().parse_args(arguments)
    scraper = Scraper(lambda: page_of(options.url, _PAGE_S), _starter(options), inert_run().now_ns)
    try:
        _scrape(scraper, options.beside)
    except SetupError as error:
        print(f"rlscope scrape: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        scraper.stop()
    return 0


def _scrape(scraper: Scraper, parent: int | None) -> None:
    said: str | None = None
    time.sleep(_INTERVAL_S)
    while parent in (None, os.getppid()):
        problem = scraper.read()
        if problem != said:
            now = "the page is read again" if problem is None else f"{problem}; retrying every {_INTERVAL_S} s"
            print(f"rlscope scrape: {now}", file=sys.stderr, flush=True)
        said = problem
        time.sleep(_INTERVAL_S)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect within the host, as from /metrics to /metrics/; nobody named another one."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request to the new address. Raises HTTPError if that is on another host."""
        host = urlsplit(newurl).hostname
        if host != urlsplit(req.full_url).hostname:
            raise HTTPError(newurl, code, f"the page is on another host, {host!r}, which is not asked", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def page_of(url: str, timeout_s: float) -> str:
    """The page at an address. Raises OSError or ValueError if it does not come whole and in time."""
    try:
        with urllib.request.build_opener(_SameHost).open(url, timeout=timeout_s) as answer:
            return b"".join(_pieces(answer, timeout_s)).decode("utf-8", "replace")
    except HTTPException as error:
        # An engine that dies while it answers, or a port of something else.
        raise ValueError(f"the answer is no page over HTTP, or ends early ({type(error).__name__})") from error


def _pieces(answer: HTTPResponse, timeout_s: float) -> Iterator[bytes]:
    """Yield the page as it comes. The timeout of a socket starts anew with each piece, so the whole has one too."""
    ends_s, announced_bytes, read_bytes = time.monotonic() + timeout_s, answer.length, 0
    while piece := answer.read1(_PIECE_BYTES):
        read_bytes += len(piece)
        if read_bytes > _PAGE_BYTES:
            raise ValueError(f"the page has more than {_PAGE_BYTES} bytes, so it is not that of an engine")
        if time.monotonic() > ends_s:
            raise ValueError(f"the page has not ended after {timeout_s} s")
        yield piece
    if announced_bytes is not None and read_bytes < announced_bytes:
        raise ValueError(f"the page ends after {read_bytes} of {announced_bytes} bytes")


def _starter(options: argparse.Namespace) -> StartRun:
    def start(engine: str, reading: Reading) -> Run:
        """Start the recording of one engine. Raises SetupError if there is nowhere to record."""
        run = start_run(
            options.run_dir,
            "sampler",
            f"{options.worker_id}-{engine}",
            gpu_count=options.gpu_count,
            kv_capacity_tokens=reading.kv_capacity_tokens,
        )
        if not run.active:
            raise SetupError("no run folder: pass --run-dir or set RLSCOPE_RUN_DIR")
        return run

    return start


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rlscope_otel.integrations.scrape", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--url", required=True, help="metrics page of the engine, e.g. http://host:8000/metrics")
    parser.add_argument("--run-dir", help="run folder (default: RLSCOPE_RUN_DIR)")
    parser.add_argument(
        "--worker-id", default="engine", help="prefix of worker names, WORKER_ID-<engine> (default: engine)"
    )
    parser.add_argument("--beside", type=int, metavar="PID", help="end when the parent with this process id has ended")
    parser.add_argument("--gpu-count", type=int, default=1, help="GPUs per engine (default: 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
