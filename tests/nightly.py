"""What `make test` leaves to `make test-all`: another instance of what a case that stays already shows."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings


def nightly(*values: Any) -> Any:
    """The parameters of a case that runs nightly."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def costly(law: Callable[..., None]) -> Callable[..., None]:
    """A law of which one example takes long: a fifth of the examples of others."""
    return settings(max_examples=settings.default.max_examples // 5)(law)
