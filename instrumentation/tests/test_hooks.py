import pytest
import rlscope_otel


def test_the_workers_file_says_what_it_is_in_the_middle_of(run, clock, rows, worker):
    def opened() -> object:
        run.flush()
        return worker("w0")["open"]

    with run.train_step(7, version_in=3):
        clock.advance(10)
        with run.wait("samples"):
            assert opened() == [
                {"doing": "train", "since_ns": 1_000_000, "step": 7},
                {"doing": "wait", "since_ns": 1_000_010, "reason": "samples"},
            ]
        assert opened() == [{"doing": "train", "since_ns": 1_000_000, "step": 7}]
    run.activity("startup").between(0, 10)
    assert opened() == []
    entered = [run.apply_weights(41).__enter__() for _ in range(100)]
    assert opened() == [{"doing": "apply", "since_ns": 1_000_010, "version": 41}] * 64
    assert len(entered) == 100
    run.stop()
    assert worker("w0")["open"] == rows("weight_updates") == []


def test_a_train_step_records_what_is_known_at_its_start_and_at_its_end(run, clock, rows):
    with run.train_step(7, version_in=3, samples=8, tokens=100) as step:
        clock.advance(50)
        step.record(loss=0.5, grad_norm=1, importance=[(0, 90, 90.0, 91.0), (2, 10, 9.5, 9.1)], fresh=(40, 40, 40.5))
        step.record(version_out=4, tokens=101)
    (row,) = rows("train_steps", "entropy", "reward_mean", "clip_ratio", "truncated_ratio")
    assert row.pop("importance") == [
        {"staleness": 0, "tokens": 90, "sum_w": 90.0, "sum_w2": 91.0},
        {"staleness": 2, "tokens": 10, "sum_w": 9.5, "sum_w2": 9.1},
    ]
    assert [row.pop(name) for name in ("fresh_tokens", "fresh_sum_w", "fresh_sum_w2")] == [40, 40.0, 40.5]
    times, versions = {"start_ns": 1_000_000, "end_ns": 1_000_050}, {"version_in": 3, "version_out": 4}
    told = {"step": 7, "samples": 8, "tokens": 101, "loss": 0.5, "grad_norm": 1.0}
    assert row == {"worker_id": "w0", **times, **versions, **told}


def test_fresh_moments_that_are_not_three_numbers_are_left_out_and_counted(run, rows):
    with run.train_step(1, version_in=0) as step:
        step.record(fresh=(1, 2.0), loss=1.0)
    (row,) = rows("train_steps")
    assert (row["fresh_tokens"], row["loss"]) == (None, 1.0)
    assert (row["samples"], row["tokens"]) == (None, None), "unknown is not 0, by which the loss would be weighted"
    assert run.faults.counts["rlscope.train_step fresh"] == 1


def test_each_phase_of_a_weight_update_is_a_row(run, columns):
    with run.publish_weights(2, label="step-40") as update:
        update.record(bytes=4096)
    with run.transfer_weights(2), run.apply_weights(2, paused=False, kv="kept"), run.weight_update_part("drain", 2):
        pass
    assert columns("weight_updates", "phase", "version", "label", "bytes", "paused", "kv") == [
        ("publish", 2, "step-40", 4096, None, None),
        ("drain", 2, None, None, None, None),
        ("apply", 2, None, None, False, "kept"),
        ("transfer", 2, None, None, None, None),
    ]


def test_engine_steps_deliveries_and_queue_depths_are_rows(run, rows):
    work = {"busy_ns": 20, "forward_passes": 2, "running": 3, "waiting": 1, "decode_tokens": 6, "kv_used_tokens": 99}
    use = {"taken_ns": 5, "queued_ns": 4, "step": 1, "consumer_version": 2, "reward": 1.0}
    run.engine_step(10, 40, **work)
    run.delivery("s1", "trained", **use)
    run.queue_depth("samples", 12, capacity=64)
    without = {"prefill_tokens": 0, "preemptions": None, "source": None}
    assert rows("engine_steps", "worker_id") == [{"start_ns": 10, "end_ns": 40, **work, **without}]
    assert rows("deliveries") == [{"sample_id": "s1", "worker_id": "w0", "outcome": "trained", **use}]
    assert rows("queue_depths", "time_ns") == [{"queue": "samples", "worker_id": "w0", "depth": 12, "capacity": 64}]


def test_an_exception_of_the_host_passes_through_and_the_row_is_written(run, rows):
    error = MemoryError("the host's")
    with pytest.raises(MemoryError) as raised, run.train_step(1, version_in=0):
        raise error
    assert raised.value is error
    assert error.__context__ is None
    (row,) = rows("train_steps")
    assert (row["step"], row["version_in"], row["version_out"]) == (1, 0, 0), "a step that published nothing"


def test_values_of_other_libraries_are_stored_as_plain_numbers(run, columns):
    class Count:
        def __int__(self) -> int:
            return 3

    class Real:
        def __float__(self) -> float:
            return 0.25

    with run.train_step(Count(), version_in=0) as step:
        step.record(loss=Real())
    run.engine_step(0, 10, running=Count())
    run.delivery(17, "trained", 2**60 + 1, reward=Real())
    assert columns("train_steps", "step", "loss") == [(3, 0.25)]
    assert columns("engine_steps", "running") == [(3,)]
    assert columns("deliveries", "sample_id", "taken_ns", "reward") == [("17", 2**60 + 1, 0.25)]


def test_what_cannot_be_stored_or_is_missing_costs_its_own_row_only_and_is_counted(run, rows, worker):
    run.engine_step(0, 10, running=1)
    run.engine_step(0, 10, running="many")
    run.engine_step(0, 10, running=2**40)
    run.engine_step(0, None)
    run.engine_step(10, 20, running=2)
    run.delivery("s1", "trained")
    run.delivery(None, "trained")
    assert [row["running"] for row in rows("engine_steps")] == [1, 2]
    assert [row["sample_id"] for row in rows("deliveries")] == ["s1"]
    assert worker("w0")["rows"]["engine_steps"] == 2
    dropped = {table: count for table, count in worker("w0")["dropped"].items() if count}
    assert dropped == {"engine_steps": 3, "deliveries": 1}


def test_unknown_words_never_raise_and_are_said_once(run, rows, worker, caplog):
    for _ in range(3):
        with run.wait("godot"):
            pass
    with run.activity("juggling"), run.weight_update_part("prayer", 1):
        pass
    run.delivery("s1", "eaten")
    run.sample("s2").finish("bored")
    run.describe(color="red", max_running=4)
    activities = [(row["activity"], row["reason"]) for row in rows("activities")]
    assert activities == [("wait", None)] * 3 + [("other", None)] * 2
    assert rows("deliveries") == []
    assert worker("w0")["dropped"]["deliveries"] == 1
    assert [row["finish_reason"] for row in rows("samples")] == [None]
    assert worker("w0")["max_running"] == 4
    assert len([record for record in caplog.records if "godot" in record.getMessage()]) == 1
    assert len(caplog.records) == 6


def test_garbage_in_every_hook_never_raises(run, rows):
    class Hostile:
        __hash__ = None

        def __float__(self) -> float:
            raise RuntimeError("no")

        __int__ = __index__ = __str__ = __repr__ = __float__
        __eq__ = __gt__ = __sub__ = __add__ = __radd__ = lambda self, other: float(self)

    bad = Hostile()
    with run.train_step(bad, version_in=bad, samples=bad) as step:
        step.record(loss=bad, importance=[bad])
        step.record(importance=bad)
    with run.publish_weights(bad) as update:
        update.record(bytes=bad, label=bad)
    sample = run.sample(bad, bad, bad, bad, bad)
    sample.tokens(bad, bad)
    sample.torn(bad)
    sample.finish("stop", bad)
    run.engine_step(bad, bad)
    run.delivery(bad, "trained", bad)
    run.queue_depth(bad, bad)
    run.add_config({"group_size": bad})
    for value in (bad, ["samples"], None, 3):
        with run.wait(value), run.activity(value):
            run.delivery("s", value)
        run.sample("s").finish(value)
    assert run.flush() and run.active
    assert rows("deliveries") == []
    assert [row["finish_reason"] for row in rows("samples")] == [None] * 4
    assert [row["activity"] for row in rows("activities")] == ["other", "wait"] * 4


@pytest.mark.parametrize("role", [None, "trainer"], ids=["without a folder", "after its end"])
def test_an_inert_run_takes_every_call_and_writes_nothing(role, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    run = rlscope_otel.start_run(role and tmp_path, role)
    run.stop()
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    with run.activity("startup"), run.wait("samples"), run.train_step(1, version_in=0) as step:
        step.record(loss=1.0)
    with run.apply_weights(1) as update:
        update.record(bytes=1)
    sample = run.sample("s")
    sample.started()
    sample.tokens(3, 0)
    sample.finish()
    run.engine_step(0, 1)
    run.delivery("s", "trained")
    run.queue_depth("samples", 1)
    run.describe(max_running=3)
    run.add_config({"group_size": 3})
    assert run.flush() and run.stop()
    assert (run.active, run.worker_id is None, run.run_id is None) == (False, role is None, role is None)
    assert run.now_ns() > 0
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before
    assert caplog.records == []


def test_a_stepped_wall_clock_does_not_touch_durations(run, clock, rows, worker):
    with run.wait("samples"):
        clock.advance(100)
        clock.step_wall(-1_000_000)
        clock.advance(100)
    run.stop()
    assert [row["end_ns"] - row["start_ns"] for row in rows("activities")] == [200]
    assert worker("w0")["stopped_ns"] - worker("w0")["started_ns"] == 200


def test_what_is_to_be_said_last_is_said_while_the_run_still_records(tmp_path, rows):
    run = rlscope_otel.start_run(tmp_path, "sampler", "w0")
    run.before_stop(lambda: run.engine_step(1, 2))
    run.before_stop(lambda: 1 / 0)
    assert run.stop()
    assert len(rows("engine_steps")) == 1
    assert run.faults.counts == {"stop": 1}
    assert run.stop()
