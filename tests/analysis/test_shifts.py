"""What changed at which step, and what was recorded as its cause."""

from typing import Any

import polars as pl
import pytest

from rlscope.analysis.shifts import RunEvent, run_events

S = 10**9
STEPS = 60
AT = 31
"""The first step of what changes."""


def run(start_at: int = AT, **after: float) -> dict[str, pl.DataFrame]:
    """Sixty steps of 10 s: training takes 6 s, waits 2 s, updates 1 s and checkpoints 1 s, for 8 samples of 800 tokens
    in all. after: what each is from a step on."""
    usual = {"train": 6.0, "wait": 2.0, "publish": 1.0, "other": 1.0, "tokens": 800.0, "reward": 0.5, "staleness": 1.0}
    steps, phases, ages, end_ns = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]](), 0
    for step in range(1, STEPS + 1):
        now = usual | (after if step >= start_at else {})
        jitter = 1.0 + 0.01 * (step * 7 % 5 - 2)
        period_s = sum(now[name] for name in ("train", "wait", "publish", "other")) * jitter
        end_ns += round(period_s * S)
        steps.append(
            {
                "step": step, "end_ns": end_ns, "step_s": period_s, "samples": 8, "tokens": None,
                "response_tokens": round(now["tokens"] * jitter), "reward_mean": now["reward"] + 0.1 * jitter,
            }
        )  # fmt: skip
        seconds = {f"{name}_gpu_s": 2 * now[name] * jitter for name in ("train", "wait", "publish", "other")}
        phases.append({"step": step, "trainer_gpus": 2, "logprobs_gpu_s": 0.0, **seconds})
        ages.append({"step": step, "staleness_mean": now["staleness"] * jitter})
    extents = {"worker_id": ["e0", "t0"], "role": ["sampler", "trainer"], "start_ns": [0, 0], "end_ns": [end_ns] * 2}
    return {
        "training_steps": pl.DataFrame(steps, schema_overrides={"tokens": pl.Int64}),
        "trainer_steps": pl.DataFrame(phases),
        "token_staleness_by_step": pl.DataFrame(ages),
        "worker_extents": pl.DataFrame(extents),
    }


def only(answers: dict[str, pl.DataFrame]) -> RunEvent:
    (event,) = run_events(answers)
    return event


def told(event: RunEvent) -> dict[str, tuple[float, float]]:
    return {each.quantity: (round(each.before, 2), round(each.after, 2)) for each in event.shifts}


def test_a_run_that_goes_on_as_it_began_has_no_event_and_neither_has_staleness_that_swings_with_the_queue() -> None:
    assert run_events(run()) == run_events(run(staleness=3.0)) == ()


def test_longer_responses_are_the_cause_of_longer_steps_and_not_a_change_of_speed() -> None:
    event = only(run(tokens=1600.0, train=12.0, wait=4.0))
    assert (event.step, event.cause, event.workers) == (AT, "lengths", ())
    assert told(event) == {
        "response_tokens": (100.0, 200.0),
        "step_s": (10.0, 18.0),
        "trained_tokens_per_s": (80.0, 88.89),
    }
    assert next(iter(told(event))) == "response_tokens"


def test_longer_responses_in_shorter_steps_do_not_explain_them() -> None:
    event = only(run(tokens=1600.0, train=3.0))
    assert (event.cause, next(iter(told(event)))) == ("training", "step_s")


@pytest.mark.parametrize(("train_s", "cause"), [(12.8, "lengths"), (13.0, "training")])
def test_longer_responses_are_the_cause_of_steps_longer_by_at_most_their_square(train_s: float, cause: str) -> None:
    """From 10 s to 16.8 s or 17 s, while responses grow by a factor of 1.3, whose square is 1.69."""
    event = only(run(tokens=1040.0, train=train_s))
    assert (event.cause, set(told(event)) >= {"response_tokens", "step_s"}) == (cause, True)


@pytest.mark.parametrize(
    ("phase", "seconds", "cause"),
    [
        ("train", 9.0, "training"),
        ("wait", 5.0, "waits"),
        ("publish", 4.0, "weight_updates"),
        ("other", 4.0, "other_activities"),
    ],
)
def test_the_phase_that_most_of_the_time_went_into_is_the_cause(phase: str, seconds: float, cause: str) -> None:
    event = only(run(**{phase: seconds}))
    assert (event.step, event.cause) == (AT, cause)
    assert told(event)["step_s"] == (10.0, 13.0)
    assert told(event)["trained_tokens_per_s"] == (80.0, 61.54)


def test_a_change_that_no_phase_holds_half_of_has_no_cause() -> None:
    assert only(run(train=7.0, wait=3.0, publish=2.0, other=1.0)).cause is None


@pytest.mark.parametrize(("steps_off", "cause"), [(4, "engines"), (6, "waits")])
def test_a_sampler_that_ends_within_five_steps_is_the_cause(steps_off: int, cause: str) -> None:
    answers = run(wait=6.0)
    gone_ns = answers["training_steps"]["end_ns"][AT - 2 + steps_off]
    answers["worker_extents"] = answers["worker_extents"].with_columns(
        end_ns=pl.when(pl.col("worker_id") == "e0").then(gone_ns).otherwise("end_ns")
    )
    event = only(answers)
    assert (event.cause, event.workers) == (cause, ("e0",) if cause == "engines" else ())


def test_reward_changes_by_itself_and_staleness_with_something_else() -> None:
    assert told(only(run(reward=0.9))) == {"reward": (0.6, 1.0)}
    assert told(only(run(reward=0.9, staleness=3.0))) == {"reward": (0.6, 1.0), "staleness_versions": (1.0, 3.0)}


@pytest.mark.parametrize(("apart", "events"), [(5, 1), (6, 2)])
def test_changes_within_five_steps_are_one_event(apart: int, events: int) -> None:
    answers, later = run(train=9.0), run(AT + apart, reward=0.9)
    answers["training_steps"] = answers["training_steps"].with_columns(later["training_steps"]["reward_mean"])
    assert len(run_events(answers)) == events


def test_quantities_that_a_step_lacks_are_not_judged() -> None:
    answers = run(train=9.0, tokens=1600.0)
    answers["training_steps"] = answers["training_steps"].with_columns(response_tokens=pl.lit(None, pl.Int64))
    del answers["token_staleness_by_step"]
    assert list(told(only(answers))) == ["step_s"]
