import importlib.util
import sys

import pytest

NEEDED = {"trl": ("trl",), "vllm": ("vllm",), "trl_vllm": ("vllm", "trl")}
NEEDED |= {"test_areal": ("areal",), "test_imported": ("verl",), "test_verl": ("verl",)}
"""Packages that the tests of a folder or of a module run, beside torch."""


@pytest.fixture(autouse=True, scope="module")
def packages_are_installed(request: pytest.FixtureRequest):
    if sys.platform != "linux":
        pytest.skip("the real pipeline is tested on Linux: it reads /proc")
    needed = ("torch", *NEEDED.get(request.path.parent.name, ()), *NEEDED.get(request.path.stem, ()))
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        how = "-vllm installs them, on Linux x86_64 with Python 3.11" if "vllm" in needed else " installs them"
        pytest.skip(f"needs {' and '.join(missing)}: make pipelines{how}")
