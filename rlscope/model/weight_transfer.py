"""Published times of moving new weights from trainers to engines, by size: the usual one and the shortest one."""

from typing import Final

from rlscope.model.decode.prior import LogNormal

_LEAST_BYTES: Final = 1e9
_SETUP_S: Final = 0.1
_BYTES_PER_S: Final = 80e9
_USUAL_S: Final = 8.3
"""Seconds for `_USUAL_BYTES`. This figure, the exponent and the deviation are fitted to 30 times of ten models that
frameworks document (`benchmarks/plan_priors.py`, which also leaves out each model)."""
_USUAL_BYTES: Final = 60e9
_USUAL_EXPONENT: Final = 0.37
"""Larger models have more GPUs to send from."""
_USUAL_LOG_SD: Final = 1.2
"""Log deviation between methods: gathering every tensor on one GPU takes up to a hundred times as long as sending each
engine its part."""


def published_transfer_s(size_bytes: float) -> float | None:
    """Return the time of the fastest published transfers of a size, in seconds; None below 1 GB, as none is published.

    The line is within a factor of 1.4 of each of them: 1 GB in 0.15 s (TRL, pull request 5249), 61 GB in 0.74 s (NeMo
    RL, pull request 2971), 212 GB in 3.5 s, 470 GB in 6.2 s and 1,030 GB in 14.4 s (checkpoint-engine, README at
    59a3c4f, 8 to 16 GPUs). All of them are between GPUs of a data center.
    """
    return None if size_bytes < _LEAST_BYTES else _SETUP_S + size_bytes / _BYTES_PER_S


def usual_update_s(size_bytes: float) -> LogNormal:
    """Return the time of an update whose method is unknown, in seconds: 8.3 (bytes / 60e9)^0.37, own form."""
    return LogNormal(_USUAL_S * (size_bytes / _USUAL_BYTES) ** _USUAL_EXPONENT, _USUAL_LOG_SD)
