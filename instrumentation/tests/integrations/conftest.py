import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from rlscope_otel.integrations import loading

Load = Callable[..., ModuleType]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the environment names for the run."""
    monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a module of a host with these members. No hook has waited for a module before."""
    monkeypatch.setattr(loading, "_awaited", set())

    def loaded(name: str, **members: object) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return loaded
