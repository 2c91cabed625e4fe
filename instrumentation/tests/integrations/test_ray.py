import pytest
import rlscope_otel
from rlscope_otel.integrations import ray as rlscope_ray

NAMED = {"RLSCOPE_ROLE": "", "RLSCOPE_WORKER_ID": "", "RLSCOPE_GPU_COUNT": ""}


def test_without_a_run_folder_the_runtime_environment_is_what_it_was():
    assert rlscope_ray.runtime_env({"pip": ["x"], "env_vars": {"A": "1"}}) == {"pip": ["x"], "env_vars": {"A": "1"}}
    assert rlscope_ray.runtime_env() == {}


def test_an_actor_gets_the_folder_whole_and_not_the_driver_s_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in (("RUN_DIR", "runs/monday"), ("ROLE", "trainer"), ("WORKER_ID", "driver"), ("GPU_COUNT", "8")):
        monkeypatch.setenv(f"RLSCOPE_{name}", value)
    assert rlscope_ray.runtime_env() == {"env_vars": {"RLSCOPE_RUN_DIR": str(tmp_path / "runs/monday"), **NAMED}}


def test_the_user_s_runtime_environment_is_kept_and_goes_first(run_dir):
    mine = {"working_dir": ".", "env_vars": {"RLSCOPE_ROLE": "controller", "A": "1"}}
    own = NAMED | {"RLSCOPE_ROLE": "controller", "RLSCOPE_GPU_COUNT": "0"}
    assert rlscope_ray.runtime_env(mine, role="sampler", gpu_count=0) == {
        "working_dir": ".",
        "env_vars": {"RLSCOPE_RUN_DIR": str(run_dir), **own, "A": "1"},
    }
    assert mine["env_vars"] == {"RLSCOPE_ROLE": "controller", "A": "1"}


def test_a_variable_that_is_empty_counts_as_not_set(run_dir, monkeypatch):
    for name in NAMED:
        monkeypatch.setenv(name, "")
    with pytest.raises(rlscope_otel.SetupError, match="role is None"):
        rlscope_otel.start_run()
    run = rlscope_otel.start_run(role="controller")
    assert (run.worker_id or "").startswith("controller-")
