import importlib.util
import sys

import pytest


@pytest.fixture(autouse=True, scope="session")
def torch_is_installed():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the real pipeline needs torch: make pipelines installs it")
    if sys.platform != "linux":
        pytest.skip("the real pipeline is tested on Linux: it reads /proc")
