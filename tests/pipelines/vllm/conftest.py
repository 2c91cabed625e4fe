import importlib.util

import pytest


@pytest.fixture(autouse=True, scope="session")
def vllm_is_installed():
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM: make pipelines-vllm installs its CPU build on Linux x86_64 with Python 3.11")
