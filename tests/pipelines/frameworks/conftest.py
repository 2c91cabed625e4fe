from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder that this process and the actors it starts record into."""
    monkeypatch.setenv("RLSCOPE_RUN_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def cluster(run_dir: Path) -> Iterator[None]:
    """A Ray cluster on this machine whose workers inherit the environment of this test."""
    import ray

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 * 2**20, logging_level="ERROR")
    yield
    ray.shutdown()
