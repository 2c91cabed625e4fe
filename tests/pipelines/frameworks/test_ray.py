"""Two real actors, one killed: what is on disk is what they had flushed, and the analysis says who fell silent."""

import pytest
import rlscope_otel
from rlscope_otel.integrations import ray as rlscope_ray

from rlscope.pipeline import analyze
from tests.pipelines.processes import assert_accounted
from tests.waiting import until

ray = pytest.importorskip("ray", reason="Ray is not installed: make pipelines installs it into .venv-frameworks")
pytestmark = pytest.mark.frameworks

TOKENS_A_SAMPLE = 5


class Sampler:
    """Records as any engine would; writes when told to."""

    def __init__(self) -> None:
        self._run = rlscope_otel.start_run(gpu_count=1, flush_interval_s=3600)

    def generate(self, first: int, count: int) -> str | None:
        for number in range(first, first + count):
            sample = self._run.sample(f"{self._run.worker_id}/{number}", "prompt")
            sample.tokens(TOKENS_A_SAMPLE, 0)
            sample.finish("stop")
        return self._run.worker_id

    def flush(self) -> bool:
        return self._run.flush()

    def leave_one_running(self) -> None:
        self._run.sample("never finished").tokens(1, 0)


def start(**given):
    return ray.remote(num_cpus=1)(Sampler).options(runtime_env=rlscope_ray.runtime_env(**given)).remote()


@pytest.mark.usefixtures("cluster")
def test_a_killed_actor_keeps_what_it_flushed_and_is_shown_as_silent(run_dir):
    killed, other = start(role="sampler", worker_id="killed"), start(role="sampler", worker_id="other")
    assert ray.get([killed.generate.remote(0, 7), other.generate.remote(0, 3)]) == ["killed", "other"]
    assert ray.get(killed.flush.remote())
    ray.get([killed.generate.remote(7, 2), killed.leave_one_running.remote()])
    ray.kill(killed)
    ray.get(other.generate.remote(3, 1))
    del other
    until(lambda: "other" not in analyze(run_dir).data_quality.workers_without_end)
    analysis = analyze(run_dir)
    assert_accounted(analysis, without_end=("killed",))
    assert analysis.answers["token_balance"]["generated_tokens"][0] == (7 + 4) * TOKENS_A_SAMPLE


def test_actors_never_take_the_driver_s_name(run_dir, monkeypatch, request):
    monkeypatch.setenv("RLSCOPE_WORKER_ID", "driver")
    monkeypatch.setenv("RLSCOPE_ROLE", "trainer")
    request.getfixturevalue("cluster")
    with rlscope_otel.start_run(gpu_count=1) as driver:
        actors = [start(role="sampler") for _ in range(2)]
        names = ray.get([actor.generate.remote(0, 1) for actor in actors])
    assert driver.worker_id == "driver"
    assert len({*names, "driver"}) == 3
    assert all(name.startswith("sampler-") for name in names)
    assert {path.stem for path in (run_dir / "workers").glob("*.json")} == {*names, "driver"}
