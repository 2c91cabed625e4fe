from collections.abc import Iterator

import pytest

from tests.alerts.notify.listener import Listener, listening


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as started:
        yield started
