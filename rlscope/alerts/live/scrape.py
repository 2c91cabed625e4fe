"""Records engines without hooks while their run is watched: a process per metrics page, beside the watch.

The processes write a run folder of engines: the watched folder itself, or `LOG.engines` beside a log. It stays, so that
`rlscope analyze LOG --engine-log LOG.engines` reads the same afterwards.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rlscope.alerts.receiver import is_http
from rlscope.errors import ArgumentError

_MODULE: Final = "rlscope_otel.integrations.scrape"
_PREFIX: Final = "rlscope scrape: "
_FAULT: Final = "rlscope: "
_READ_AGAIN: Final = "the page is read again"
_END_S: Final = 10.0
"""Longest wait for a process to write what it has read."""
_LINE_BYTES: Final = 65_536


def engines_folder(log: Path) -> Path:
    """Return the run folder for the engines of a log."""
    return log.with_name(f"{log.name}.engines")


class Scraper:
    """A process that polls one page."""

    def __init__(self, url: str, folder: Path, gpus_per_engine: int) -> None:
        options = ["--url", url, "--run-dir", folder, "--worker-id", _name_of(url), "--gpu-count", gpus_per_engine]
        self._url = url
        self._trouble = ""
        self._half = b""
        """The beginning of a line whose rest has not come."""
        # A signal of the terminal goes to the watch alone, which ends the process after its last look.
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *map(str, options), "--beside", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)

    def trouble(self) -> str | None:
        """Return why the page is not read, or else what happened since the last call, as a sentence; None if nothing.

        A restart of an engine, for example, is over when it is said.
        """
        # Before its last words are read: it may end in between.
        has_ended = self._process.poll() is not None
        event = ""
        for line in self._lines():
            if line.startswith(_FAULT):
                event = line.removeprefix(_FAULT)
                continue
            said = line.removeprefix(_PREFIX)
            self._trouble = "" if said == _READ_AGAIN else said
        if has_ended:
            return f"{self._url}: recording ended: {self._trouble or f'exit code {self._process.returncode}'}"
        trouble = self._trouble or event
        return f"{self._url}: {trouble}" if trouble else None

    def stop(self) -> None:
        """End the process after it has written what it read; kill it if that takes long."""
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.communicate()

    def _lines(self) -> list[str]:
        """Return the lines that the process has written since the last call."""
        assert self._process.stderr is not None
        with suppress(BlockingIOError):
            self._half += os.read(self._process.stderr.fileno(), _LINE_BYTES)
        *lines, self._half = self._half.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]


@contextmanager
def scraping(urls: Sequence[str], folder: Path, gpus_per_engine: int) -> Generator[Sequence[Scraper]]:
    """Record the engines of some pages into a run folder until the block ends. Raises ArgumentError for a bad URL."""
    for url in urls:
        _name_of(url)
    # An engine that is read twice would count as two.
    scrapers = [Scraper(url, folder, gpus_per_engine) for url in dict.fromkeys(urls)]
    try:
        yield scrapers
    finally:
        for each in scrapers:
            each.stop()


def _name_of(url: str) -> str:
    """Return the prefix of the names of a page's engines: host and port."""
    if not is_http(url):
        raise ArgumentError.of(
            "--scrape",
            found=repr(url),
            expected="the address of an engine's metrics page",
            next_step="Example: --scrape http://localhost:8000/metrics",
        )
    parts = urlsplit(url)
    named = parts.hostname or "" if parts.port is None else f"{parts.hostname}-{parts.port}"
    return re.sub(r"[^A-Za-z0-9_.-]", "-", named)[:100]
