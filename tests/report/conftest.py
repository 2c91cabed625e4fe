import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from rlscope.report import figure

# The fixture is a module of this folder; with importlib imports the folder is not on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def stills_drawn_once() -> Iterator[None]:
    """The same made runs are drawn again and again, and half of the time goes into the pictures for no scripts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(figure, "still", lru_cache(maxsize=1_000)(figure.still))
        yield
