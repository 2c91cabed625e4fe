"""The shortest time in which a transfer of new weights from trainers to engines is known to succeed, by size."""

from typing import Final

_LEAST_BYTES: Final = 1e9
_SETUP_S: Final = 0.1
_BYTES_PER_S: Final = 80e9


def published_transfer_s(size_bytes: float) -> float | None:
    """Return the time of the fastest published transfers of a size, in seconds; None below 1 GB, as none is published.

    The line is within a factor of 1.4 of each of them: 1 GB in 0.15 s (TRL, pull request 5249), 61 GB in 0.74 s (NeMo
    RL, pull request 2971), 212 GB in 3.5 s, 470 GB in 6.2 s and 1,030 GB in 14.4 s (checkpoint-engine, README at
    59a3c4f, 8 to 16 GPUs). All of them are between GPUs of a data center.
    """
    return None if size_bytes < _LEAST_BYTES else _SETUP_S + size_bytes / _BYTES_PER_S
