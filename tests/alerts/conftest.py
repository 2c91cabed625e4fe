from collections.abc import Iterator

import pytest

from tests.alerts.notify.listener import Listener, listening


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as started:
        yield started


@pytest.fixture
def refused() -> str:
    """An address on which nobody listens."""
    with listening() as gone:
        url = gone.url
    return url
