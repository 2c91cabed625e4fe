import importlib.util

import pytest


@pytest.fixture(autouse=True, scope="session")
def trl_is_installed(torch_is_installed):
    if importlib.util.find_spec("trl") is None:
        pytest.skip("these tests run TRL: make pipelines installs it")
