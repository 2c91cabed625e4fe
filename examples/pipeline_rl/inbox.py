"""The trainer's end of the queue: a thread empties the pipes so that no sampler ever blocks in a send."""

import threading
from multiprocessing.connection import Connection, wait

from examples.pipeline_rl.groups import FinishedGroup


class Inbox:
    """Groups that have arrived and are not taken yet."""

    def __init__(self, pipes: tuple[Connection, ...]) -> None:
        self._pipes = list(pipes)
        self._groups: list[FinishedGroup] = []
        self._arrived = threading.Condition()
        threading.Thread(target=self._receive, name="inbox", daemon=True).start()

    def __len__(self) -> int:
        return len(self._groups)

    def oldest(self) -> tuple[int, int | None]:
        """Number of groups, and the version of the oldest token in any of them; None when empty."""
        with self._arrived:
            return len(self._groups), min((group.oldest_version for group in self._groups), default=None)

    def await_change(self, timeout_s: float) -> None:
        """Sleep until a group arrives, or the timeout."""
        with self._arrived:
            self._arrived.wait(timeout_s)

    def take_oldest(self, count: int) -> list[FinishedGroup]:
        """Remove up to `count` groups, those with the oldest tokens first, then by arrival."""
        with self._arrived:
            self._groups.sort(key=lambda group: group.oldest_version)
            taken, self._groups = self._groups[:count], self._groups[count:]
            return taken

    def take_older_than(self, version: int) -> list[FinishedGroup]:
        """Remove every group that holds a token from before `version`."""
        with self._arrived:
            taken = [group for group in self._groups if group.oldest_version < version]
            self._groups = [group for group in self._groups if group.oldest_version >= version]
            return taken

    def _receive(self) -> None:
        while self._pipes:
            for pipe in wait(self._pipes):
                self._receive_one(pipe)

    def _receive_one(self, pipe: Connection) -> None:
        try:
            group = pipe.recv()
        except (EOFError, OSError):  # the sampler has ended
            self._pipes.remove(pipe)
            return
        with self._arrived:
            self._groups.append(group)
            self._arrived.notify()
