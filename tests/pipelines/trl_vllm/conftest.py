import importlib.util

import pytest


@pytest.fixture(autouse=True, scope="session")
def vllm_is_installed(torch_is_installed):
    if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("trl") is None:
        pytest.skip("needs vLLM and TRL: make pipelines-vllm installs them on Linux x86_64 with Python 3.11")
