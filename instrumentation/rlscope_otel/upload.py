"""The process that copies one worker's files to a store: `python -m rlscope_otel.upload RUN_DIR WORKER ADDRESS ...`.

A process of its own, since the clients of object stores have threads that no fork of the host may copy, hold up the end
of a process while a store does not answer, and take the interpreter. `uploader.py` starts it beside a recording. It
ends when the worker has stopped and all is copied, or a minute after its input was closed, whatever a store does.
It writes a line for each failure and what it left.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rlscope_otel.object_store import ObjectStore, without_secrets
from rlscope_otel.worker_copy import WorkerCopy

LONGEST_END_S: Final = 60.0
"""Maximum time that a copy continues after the end of the recording."""
_FIRST_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 300.0
_LONGEST_MESSAGE: Final = 500


def retry_s(failures: int) -> float:
    """Return the wait after this many failures in a row, in seconds: 1, 2, 4, ... up to five minutes."""
    return min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(failures - 1, 20))


def copy_until_the_end(
    round_of: Callable[[], bool], interval_s: float, is_over: Callable[[float], bool], say: Callable[[str], None]
) -> bool:
    """Copy at every interval, and when the recording is over; True when all was copied.

    round_of: copies what is new, and says whether that was the last. is_over: waits at most so many seconds for the end
    of the recording, and says whether it has come.
    """
    failures, end_s = 0, float("inf")
    while True:
        is_ending = end_s < float("inf")
        try:
            if round_of() or is_ending:
                return True
            failures = 0
        except Exception as error:  # Clients raise what they like; the files are on the local disk whatever happens.
            failures += 1
            say(_shown(error))
            if time.monotonic() + retry_s(failures) > end_s:
                return False
        if is_ending:
            time.sleep(retry_s(failures))
        elif is_over(max(interval_s, retry_s(failures)) if failures else interval_s):
            end_s = time.monotonic() + LONGEST_END_S
            failures = 0


def _shown(error: Exception) -> str:
    """An error on one line, without what is secret."""
    text = without_secrets(f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:_LONGEST_MESSAGE]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # Nobody may listen any more.
        print(text, flush=True)


def main() -> int:
    """The process. Its signals are those of the host, which says by its own end when to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    run_dir, worker_id, address, interval_s = sys.argv[1:]
    copies: list[WorkerCopy] = []

    def copy_new_files() -> bool:
        """Do a round of the copy. The first opens the store, and the next does if that fails."""
        if not copies:
            copies.append(WorkerCopy(Path(run_dir), worker_id, ObjectStore(address)))
        return copies[0].round()

    def is_over(seconds: float) -> bool:
        """Wait for the end of the recording, after which this process is not to last for long."""
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        over = bool(readable) and not os.read(sys.stdin.fileno(), 64)
        if over:
            # Whatever a client is doing then: a request that hangs holds nobody up for longer.
            signal.alarm(round(LONGEST_END_S) + 5)
        return over

    return 0 if copy_until_the_end(copy_new_files, float(interval_s), is_over, _say) else 1


if __name__ == "__main__":
    sys.exit(main())
