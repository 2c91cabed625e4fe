"""Puts a sample's name into an engine's request id, so that the engine's and the trainer's rows name the same sample.

A trainer that sends its own request ids has the engine's hook record under the trainer's names. An id that was not made
here is a sample of its own: one segment, no group.
"""

import itertools
import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

_PREFIX = "rlscope"
_PATTERN = re.compile(rf"{_PREFIX}~(?P<group>[^~]*)~(?P<sample>[^~]+)~(?P<segment>\d+)")


class RequestName(NamedTuple):
    """Sample and segment that a request generates."""

    sample_id: str
    group_id: str | None = None
    segment: int = 0


def segments_of(sample_id: str, group_id: str) -> Iterator[RequestName]:
    """The names of the requests that generate a sample, one after the other."""
    return map(partial(RequestName, sample_id, group_id), itertools.count())


def request_id_of(name: RequestName) -> str:
    """The request id to send. The names may hold any character that a header can, but `~`."""
    return f"{_PREFIX}~{name.group_id or ''}~{name.sample_id}~{name.segment}"


def name_of(request_id: str) -> RequestName:
    """The name inside a request id, wherever an engine's own prefix and suffix (`cmpl-...-0`) leave it."""
    found = _PATTERN.search(request_id) if _PREFIX in request_id else None
    if found is None:
        return RequestName(request_id)
    return RequestName(found["sample"], found["group"] or None, int(found["segment"]))
