from rlscope_otel.integrations.host import (
    engine_samples_wanted,
    host_run,
    leave_samples_to_framework,
    own_run,
    recording_wanted,
)


def test_without_a_run_folder_the_host_s_run_is_inert():
    assert not recording_wanted()
    assert not host_run("sampler").active
    assert not own_run().active


def test_a_second_engine_of_a_process_is_a_worker_of_its_own(run_dir):
    first, second = host_run("sampler", "engine-0"), host_run("sampler", "engine-1")
    assert (first.worker_id, second.worker_id) == ("engine-0", "engine-1")
    assert host_run("sampler", "engine-0") is first


def test_wrong_settings_are_a_warning_and_an_inert_run(run_dir, monkeypatch, caplog):
    monkeypatch.setenv("RLSCOPE_ROLE", "cook")
    assert not host_run("sampler").active
    assert "cook" in caplog.text


def test_an_engine_s_hook_leaves_the_samples_to_the_framework_s_unless_told_otherwise(monkeypatch):
    monkeypatch.setenv("RLSCOPE_SAMPLES", "engine")
    leave_samples_to_framework()
    assert engine_samples_wanted()
    monkeypatch.delenv("RLSCOPE_SAMPLES")
    assert engine_samples_wanted()
    leave_samples_to_framework()
    assert not engine_samples_wanted()
