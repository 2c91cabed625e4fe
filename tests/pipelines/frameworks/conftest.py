from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray_start import start_ray


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder that this process and the actors it starts record into."""
    monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def cluster(run_dir: Path) -> Iterator[None]:
    """A Ray cluster on this machine whose workers inherit the environment of this test."""
    import ray

    start_ray()
    yield
    ray.shutdown()
