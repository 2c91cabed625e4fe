import importlib
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from rlscope_otel.faults import Faults
from rlscope_otel.integrations import areal, loading, sglang, verl
from rlscope_otel.integrations.loading import once_loaded


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package of the host with one module; nothing of it is loaded yet."""
    (tmp_path / "hostpackage").mkdir()
    (tmp_path / "hostpackage" / "__init__.py").write_text("")
    (tmp_path / "hostpackage" / "engine.py").write_text("value = 1\ndef run(): return value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(loading, "_awaited", set())
    yield "hostpackage.engine"
    for name in ("hostpackage", "hostpackage.engine"):
        sys.modules.pop(name, None)


def test_it_is_called_with_the_complete_module_when_the_host_imports_it(host):
    seen: list[int] = []
    once_loaded(host, lambda module: seen.append(module.run()), Faults())
    assert seen == []
    assert "hostpackage" not in sys.modules
    import hostpackage.engine

    assert seen == [1]
    assert isinstance(hostpackage.engine.__spec__.loader, SourceFileLoader)
    assert isinstance(hostpackage.engine.__loader__, SourceFileLoader)


def test_only_the_first_that_waits_for_a_module_is_told(host):
    seen: list[str] = []
    once_loaded(host, lambda module: seen.append("first"), Faults())
    once_loaded(host, lambda module: seen.append("second"), Faults())
    import hostpackage.engine  # noqa: F401

    assert seen == ["first"]


def test_what_goes_wrong_is_counted_and_the_host_s_import_goes_on(host):
    faults = Faults()

    def fails(module: object) -> None:
        raise RuntimeError("ours")

    once_loaded(host, fails, faults)
    import hostpackage.engine

    assert hostpackage.engine.run() == 1
    assert faults.counts == {f"loading {host}": 1}


def test_an_import_of_the_host_that_fails_fails_as_before(host, tmp_path):
    seen: list[object] = []
    (tmp_path / "hostpackage" / "broken.py").write_text("raise ValueError('of the host')")
    once_loaded("hostpackage.broken", seen.append, Faults())
    with pytest.raises(ValueError, match="of the host"):
        importlib.import_module("hostpackage.broken")
    with pytest.raises(ModuleNotFoundError):
        once_loaded("hostpackage.missing", seen.append, Faults())
        importlib.import_module("hostpackage.missing")
    assert seen == []


@pytest.mark.parametrize("hook", [areal.instrument, sglang.register, verl.activate])
def test_without_a_run_folder_a_hook_waits_for_no_module(hook, monkeypatch):
    monkeypatch.setattr(loading, "_awaited", set())
    hook()
    assert loading._awaited == set()
    monkeypatch.setenv("RLSCOPE_RUN_DIR", "run")
    monkeypatch.setenv("RLSCOPE_SAMPLES", "framework")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    hook()
    assert loading._awaited != set()
