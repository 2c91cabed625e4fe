"""From answers to what the model is given: what a run shows, what it lacks, and which limits are seen to act."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from rlscope.analysis.advise import _model_config, read_scheduling, sampler_gpus_in
from rlscope.analysis.interval import Interval
from rlscope.analysis.observe import UnobservableError, observe
from rlscope.analysis.result import Constraints
from rlscope.model.forecast.replay import Scheduling
from rlscope.model.observed import Delivered, Observed, PreemptionCounts, SeenLoad, SeenScheduling
from rlscope.model.system import Admission
from rlscope.trace.config import RunConfig
from tests.model.known_run import observed

SECOND = 1_000_000_000
STRETCH = Interval(0, 10 * SECOND)
BUCKET_NS = SECOND


def rows(columns: str, *given: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(given, schema=columns.split(), orient="row")


def taken(batches_ahead: float | None, steps: int = 4, batches: int = 4) -> pl.DataFrame:
    row = {"samples": 8, "batches_ahead": batches_ahead, "steps": steps, "batches": batches}
    return pl.DataFrame([row], schema_overrides={"batches_ahead": pl.Float64})


def answers(**changed: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Four steps of two seconds on two engines, 8 samples of 100 tokens each."""
    steps = pl.DataFrame({"step": [1, 2, 3, 4], "end_ns": [2 * SECOND, 4 * SECOND, 6 * SECOND, 8 * SECOND]})
    zeros = {f"{name}_gpu_s": pl.lit(0.0) for name in ("logprobs", "other", "held")}
    return {
        "worker_devices": rows(
            "worker_id role gpu_count device_name kv_capacity_tokens max_running",
            ("e0", "sampler", 2, None, 5_000, 64),
            ("e1", "sampler", 2, "NVIDIA H100 80GB HBM3", 4_000, 32),
            ("t0", "trainer", 4, None, None, None),
        ),
        "trainer_steps": steps.with_columns(
            trainer_gpus=pl.lit(4),
            train_gpu_s=pl.lit(4.0),
            wait_gpu_s=pl.lit(3.0),
            publish_gpu_s=pl.lit(1.0),
            published=pl.lit(1),
            **zeros,
        ),
        "training_steps": steps.with_columns(
            step_s=pl.Series([None, 2.0, 2.0, 2.0]),
            samples=pl.lit(8),
            tokens=pl.lit(1_000),
            response_tokens=pl.lit(800),
        ),
        "pass_costs": rows(
            "worker_id running in_update prefills rows passes busy_s between_s pass_p50_s decode_tokens prefill_tokens "
            "kv_used_tokens",
            ("e0", 4, False, False, 5, 10, 0.1, 0.01, 0.009, 40, 0, 200.0),
            ("e1", 8, False, True, 6, 12, 0.2, 0.02, 0.015, 96, 64, None),
        ),
        "length_counts": rows(
            "output_tokens ending samples prompt_tokens added_tokens",
            (100, "finished", 6, 60, 0.0),
            (100, "censored", 1, 10, 450.0),
            (200, "capped", 1, 10, 0.0),
        ),
        "group_members": rows(
            "group_id output_tokens is_ended", ("a", 50, True), ("a", 150, True), ("b", 100, True), ("b", 100, True)
        ),
        "samples_in_flight": rows(
            "in_flight_mean environment_mean between_turns_mean finished_samples", (12.0, 3.0, 1.0, 40)
        ),
        "environment_waits": rows("part wait_s samples", (1, 0.0, 1), (2, 3.0, 1)),
        "batches_ahead": taken(batches_ahead=0.75),
        "preemptions": rows("preemptions prefill_tokens prompt_tokens segments", (3, 100, 80, 8)),
        "group_deliveries": rows("samples queued_earlier delivery_s", (20, 18, 0.25)),
        "taking_order": rows(
            "earlier_left later_left older_left younger_left older_group_left younger_group_left",
            (1, 39, 4, 16, 10, 9),
        ),
        "in_flight_levels": rows("taken_mean taken_high trained_high", (17.5, 20, 28)),
        "batch_filling": rows(
            "samples taken_on_arrival queued_mean_samples depths_of_others waited_for held_at_start",
            (20, 5, 6.5, 12, 0, 0),
        ),
        "queue_level": rows("queue depth_mean_samples", ("samples", 4.5)),
        "group_engines": rows("groups one_engine_groups engines", (4, 3, 2)),
        "judged_outcomes": rows(
            "outcome samples tokens queued_tokens",
            ("trained", 24, 2_400, 0),
            ("dropped_stale", 1, 100, 50),
            ("filtered", 2, 200, 150),
            ("abandoned", 1, 40, 30),
        ),
        "weight_update_latency": rows(
            "applied_ns publish_to_applied_s kv",
            (3 * SECOND, 1.0, "kept"),
            (3 * SECOND, 2.0, None),
            (30 * SECOND, 50.0, "recomputed"),
        ),
        "token_staleness": rows("step staleness tokens", (1, 7, 9), (2, 0, 5), (3, 1, 6), (4, 1, 7), (4, 2, 8)),
        "oldest_staleness": rows("step staleness samples", (1, 8, 3), (2, 1, 2), (4, 1, 4), (4, 2, 1)),
        **changed,
    }


TIMELINE = rows(
    "role state reason bucket_start_ns gpu_s",
    ("sampler", "decoding", None, 0, 4.0),
    ("sampler", "applying_weights", None, SECOND, 2.0),
    ("sampler", "decoding", None, 9 * SECOND + SECOND // 2, 4.0),
    ("trainer", "train", None, 0, 9.0),
).cast({"reason": pl.String})


CONFIG = RunConfig(group_size=2, max_output_tokens=200)


def seen(given: Mapping[str, pl.DataFrame], config: RunConfig = CONFIG) -> Observed:
    return observe(config, 4, given, STRETCH.clip(TIMELINE, BUCKET_NS), STRETCH)


def test_a_stretch_shows_its_workers_its_steps_and_its_samples():
    run = seen(answers())
    assert (run.trainer_gpus, run.engines, run.gpus_per_engine) == (4, 2, 2)
    assert (run.max_running, run.kv_capacity_tokens, run.device_name) == (32, 4_000, "NVIDIA H100 80GB HBM3")
    assert run.steps.period_s.tolist() == [2.0, 2.0, 2.0]  # the first step has no period
    assert run.steps.train_s.tolist() == [1.0, 1.0, 1.0]
    assert run.steps.wait_s.tolist() == [0.75, 0.75, 0.75]
    assert run.trained_tokens_per_s == 400.0
    assert (run.began_samples, run.prompt_tokens, run.group_size) == (8, 80 / 8 + 450 / 900, 2)
    assert run.prefetched_batches == 0.75
    assert run.preemption_counts == PreemptionCounts(preemptions=3, recomputed_tokens=20)
    assert run.delivered == Delivered(2_400, 100, 240)  # Abandoned samples cost as much as filtered ones.
    assert run.staleness == ((0, 5), (1, 13), (2, 8))  # of the steps of the stretch only
    # 4 GPU-seconds and half of the 4 of a bucket that reaches half out of the stretch, on engines of 2 GPUs.
    assert run.engine_state_s == {("decoding", None): 3.0, ("applying_weights", None): 1.0}
    # An update costs what engines stood still for it, over those in the stretch.
    assert (run.apply_s, run.update_delay_s, run.kv_kept) == (0.5, 1.5, True)


@pytest.mark.parametrize(
    ("preemptions", "prefill_tokens", "preemption_counts"),
    [
        (None, 100, None),
        (0, 100, PreemptionCounts(0, 0)),
        (1, 81, PreemptionCounts(1, 1)),
        (1, 80, PreemptionCounts(1, None)),
    ],
)
def test_tokens_beyond_the_prompts_were_computed_again_where_requests_were_put_back(
    preemptions: int | None, prefill_tokens: int, preemption_counts: PreemptionCounts | None
):
    row = {"preemptions": preemptions, "prefill_tokens": prefill_tokens, "prompt_tokens": 80, "segments": 8}
    assert seen(answers(preemptions=pl.DataFrame([row]))).preemption_counts == preemption_counts


def test_the_same_rows_give_the_same_shares_to_the_last_bit():
    states = ["waiting_for_samples", "train", "logprobs", "checkpoint", "eval", "other", "publishing_weights"]
    trainer = pl.DataFrame({"state": states, "gpu_s": [0.1, 0.7, 1e-3, 3e5, 1.9, 7e-5, 0.3]})
    timeline = pl.concat([trainer.with_columns(role=pl.lit(role)) for role in ("trainer", "sampler")])
    timeline = timeline.with_columns(reason=pl.lit(None, pl.String), bucket_start_ns=pl.lit(0))
    runs = [observe(CONFIG, 4, answers(), STRETCH.clip(timeline, BUCKET_NS), STRETCH) for _ in range(30)]
    assert {run.load.wait_samples_ratio for run in runs} == {runs[0].load.wait_samples_ratio}
    assert {tuple(run.engine_state_s) for run in runs} == {tuple(runs[0].engine_state_s)}


def with_held(gpu_s: float) -> Observed:
    given = answers()
    return seen({**given, "trainer_steps": given["trainer_steps"].with_columns(held_gpu_s=pl.lit(gpu_s))})


def test_waits_of_trainers_for_other_work_are_part_of_a_step_up_to_a_tenth_of_their_time():
    run = with_held(0.8)  # of 8 GPU-seconds a step
    assert (run.steps.wait_s.tolist(), run.steps.other_s.tolist()) == ([0.55] * 3, [0.2] * 3)
    with pytest.raises(UnobservableError, match="other work than sampling 10% of their time, such as at a `barrier`"):
        with_held(0.81)


@pytest.mark.parametrize(("counted", "fits"), [(11, True), (10, False), (54, True), (55, False)])
def test_steps_that_count_other_samples_than_were_delivered_to_them_are_no_run_to_model(counted: int, fits: bool):
    given = answers()
    counts = given["training_steps"].with_columns(samples=pl.lit(counted))
    delivered = given["judged_outcomes"].with_columns(samples=pl.lit(72))  # 24 a step
    both = {**given, "training_steps": counts, "judged_outcomes": delivered}
    if fits:
        assert seen(both).steps.samples.tolist() == [counted] * 3
    else:
        with pytest.raises(UnobservableError, match=f"counts {counted} samples, and 24 were delivered to it"):
            seen(both)


def extents(*samplers: tuple[float, float]) -> pl.DataFrame:
    """Samplers of two GPUs by their start and end in seconds, beside a trainer."""
    given = [("sampler", 2, round(start * SECOND), round(end * SECOND)) for start, end in samplers]
    return rows("role gpu_count start_ns end_ns", *given, ("trainer", 8, 0, 99 * SECOND))


def test_sampler_gpus_are_those_of_the_stretch_whatever_joins_before_it_or_leaves_after_it():
    stretch = Interval(10 * SECOND, 20 * SECOND)
    assert sampler_gpus_in(extents((0, 99), (0, 10), (20, 99), (5, 20)), stretch) == 4
    assert sampler_gpus_in(extents((0, 15), (15.5, 99), (0, 99)), stretch) == 4  # one started again
    assert sampler_gpus_in(extents((0, 18), (0, 99)), stretch) == 4  # a tenth of the time is missing
    with pytest.raises(UnobservableError, match=r"of up to 4 sampler GPUs, 3\.6 were there on average"):
        sampler_gpus_in(extents((0, 17.9), (0, 99)), stretch)
    assert sampler_gpus_in(extents(), stretch) == 0


def test_engines_are_numbered_as_one_counts_and_not_as_one_spells():
    names = ["sampler-2", "sampler-10", "sampler-1", "sampler-2"]
    costs = pl.concat([answers()["pass_costs"].head(1).with_columns(worker_id=pl.lit(name)) for name in names])
    passes = seen({**answers(), "pass_costs": costs}).passes
    assert passes.engine_names == ("sampler-1", "sampler-2", "sampler-10")
    assert passes.engine.tolist() == [1, 2, 0, 1]
    assert passes.kv_tokens[0] == 200.0
    assert np.isnan(seen(answers()).passes.kv_tokens[1])  # not recorded


def test_lengths_count_unfinished_samples_and_keep_the_cap():
    law = seen(answers()).lengths
    assert law.max_output_tokens == 200
    # 6 of 8 end at 100; the one that is cut off there is as likely to go on as the one that does.
    assert law.support.tolist() == [100.0, 200.0]
    assert law.probabilities.tolist() == pytest.approx([0.75, 0.25])
    assert law.groups is not None and law.groups.tail_ratio == pytest.approx(1.25)
    # A sample is longer than a cap of 150: that was the cap of one request.
    assert seen(answers(), RunConfig(group_size=2, max_output_tokens=150)).lengths.max_output_tokens is None


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("worker_devices", lambda rows: rows.filter(pl.col("role") == "trainer"), "no GPU is for sampling alone"),
        (
            "worker_devices",
            lambda rows: rows.with_columns(gpu_count=pl.Series([2, 4, 4])),
            "the engines differ: they have 2, 4 GPUs each",
        ),
        ("training_steps", lambda rows: rows.head(3), "2 steps lie in the stretch"),
        ("trainer_steps", lambda rows: rows.with_columns(trainer_gpus=pl.lit(0)), "own no GPU"),
        (
            "training_steps",
            lambda rows: rows.with_columns(response_tokens=pl.lit(0)),
            "no recorded sample was delivered to steps 2 to 4",
        ),
        ("pass_costs", lambda rows: rows.head(0), "no forward pass"),
        ("length_counts", lambda rows: rows.head(0), "no sample was recorded in steps 2 to 4"),
        ("length_counts", lambda rows: rows.with_columns(output_tokens=pl.lit(0)), "no sample with a token"),
    ],
)
def test_what_a_run_lacks_is_said(table: str, change, message: str):
    given = answers()
    with pytest.raises(UnobservableError, match=message):
        seen({**given, table: change(given[table])})


@pytest.mark.parametrize(("groups", "together_ratio"), [((4, 3, 2), 0.75), ((4, 4, 1), None), ((0, 0, 2), None)])
def test_groups_are_together_as_recorded_where_there_are_several_engines(
    groups: tuple[int, int, int], together_ratio: float | None
):
    run = seen(answers(group_engines=rows("groups one_engine_groups engines", groups)))
    assert run.one_engine_groups_ratio == together_ratio
    assert (run.environment_samples, run.between_turns_samples) == (3.0, 1.0)
    assert run.environment_waits_s == (0.0, 3.0)  # they vary as recorded


DROPPING = Delivered(trained_tokens=998, dropped_tokens=2, filtered_tokens=0)
KEEPING = Delivered(trained_tokens=999, dropped_tokens=1, filtered_tokens=0)


def prefetched(config: RunConfig, run: Observed) -> float:
    return _model_config(config, SimpleNamespace(steps=30, auxiliary_gpus=0), run, Constraints()).prefetched_batches


def likeliest(config: RunConfig, run: Observed) -> Scheduling:
    return read_scheduling(config, run).possible[0]


def drop(max_staleness: int) -> dict[str, Any]:
    return {"staleness_policy": "drop", "max_staleness": max_staleness}


@pytest.mark.parametrize(
    ("config", "delivered", "expected"),
    [
        ({}, KEEPING, Admission()),
        (drop(1) | {"queue_capacity_samples": 8}, KEEPING, Admission(8, "wait", 1, staleness_policy="drop")),
        (drop(4), DROPPING, Admission(None, "wait", 4, staleness_policy="drop")),
        (
            drop(4) | {"max_running_samples": 32},
            DROPPING,
            Admission(None, "wait", 4, None, 32, staleness_policy="drop"),
        ),
        (drop(4) | {"queue_policy": "drop_oldest", "queue_capacity_samples": 8}, DROPPING, Admission(8, "drop_oldest")),
        ({"staleness_policy": "publication_waits", "max_staleness": 0}, KEEPING, Admission()),
        (
            {"staleness_policy": "admission", "max_staleness": 3, "max_in_flight_samples": 100},
            KEEPING,
            Admission(None, "wait", 3, 100),
        ),
    ],
)
def test_a_limit_acts_as_the_run_shows_it(config: dict[str, Any], delivered: Delivered, expected: Admission):
    assert likeliest(RunConfig(**config), replace(observed(), delivered=delivered)).admission == expected


@pytest.mark.parametrize(("ahead", "drops"), [(None, False), (0.99, False), (1.0, True)])
def test_a_cap_that_drops_is_kept_where_samples_pass_it_only_while_they_are_held_ahead(
    ahead: float | None, drops: bool
):
    config = RunConfig(**drop(1), batches_ahead=ahead)
    aged = replace(observed(), staleness=((1, 900), (2, 100)), delivered=KEEPING)
    assert (likeliest(config, aged).admission.staleness_policy == "drop") is drops
    assert prefetched(config, aged) == (ahead or 0.0)


@pytest.mark.parametrize(
    ("batches", "parts", "held", "per_step"),
    [
        (taken(1.0), (0, 0), 1.0, 1.0),
        (taken(0.5, batches=2), (0, 0), 0.0, 0.5),  # two steps share a batch: the second one's half is not ahead
        (taken(1.5, batches=2), (0, 0), 1.0, 0.5),
        (taken(1.0, batches=1), (0, 0), 0.0, 0.25),
        (taken(0.0), (20, 5), 0.0, 4.0),  # a quarter of what steps waited for was there when they started
        (taken(0.0), (19, 5), 0.0, 1.0),  # too few to tell
        (taken(0.0), (20, 0), 0.0, 1.0),  # recorded after the start
        (taken(None, 0, 0), (0, 0), None, 1.0),
    ],
)
def test_steps_share_a_batch_or_take_it_in_parts_as_the_run_shows(
    batches: pl.DataFrame, parts: tuple[int, int], held: float | None, per_step: float
):
    given = answers(batches_ahead=batches)
    filling = given["batch_filling"].with_columns(waited_for=pl.lit(parts[0]), held_at_start=pl.lit(parts[1]))
    run = seen({**given, "batch_filling": filling})
    assert (run.prefetched_batches, run.batches_per_step) == (held, per_step)


@pytest.mark.parametrize(
    ("config", "shown", "ahead"),
    [
        (RunConfig(), 1.5, 1.5),
        (RunConfig(batches_ahead=0.0), 1.5, 0.0),
        (RunConfig(), None, 0.0),
        (RunConfig(), 0.05, 0.05),
        (RunConfig(), 0.049, 0.0),
        (RunConfig(staleness_policy="drop", max_staleness=1), 2.0, 2.0),
        (RunConfig(staleness_policy="admission", max_staleness=2), 1.9, 1.9),
        (RunConfig(staleness_policy="admission", max_staleness=2), 2.0, 0.0),
        (RunConfig(staleness_policy="admission"), 2.0, 2.0),
        (RunConfig(staleness_policy="publication_waits", max_staleness=4), 1.0, 0.0),
    ],
)
def test_batches_ahead_are_those_that_the_run_states_else_shows_where_its_cap_has_room_for_them(
    config: RunConfig, shown: float | None, ahead: float
):
    assert prefetched(config, replace(observed(), prefetched_batches=shown)) == ahead


def test_the_user_s_cap_goes_before_the_run_s_and_a_cap_that_drops_excludes_no_layout():
    facts = SimpleNamespace(steps=30, auxiliary_gpus=0)
    config = RunConfig(max_staleness=4, total_steps=50, gpus_per_trainer_replica=2)
    run = observed()
    assert _model_config(config, facts, run, Constraints()).most_staleness == 4
    assert _model_config(config, facts, run, Constraints(most_staleness=1)).most_staleness == 1
    assert _model_config(config, facts, run, Constraints()).remaining_steps == 20
    keeping, held = replace(config, staleness_policy="drop"), replace(run, delivered=DROPPING)
    own = _model_config(keeping, facts, held, Constraints())
    assert own == _model_config(keeping, facts, held, Constraints(most_staleness=4))
    assert own != _model_config(keeping, facts, held, Constraints(most_staleness=5))
    assert _model_config(config, facts, run, Constraints(gpus_per_node=8)).granularity.gpus_per_node == 8
    for policy in ("drop", "admission", "publication_waits"):
        keeping = replace(config, staleness_policy=policy)
        assert _model_config(keeping, facts, held, Constraints()).most_staleness is None


@pytest.mark.parametrize(
    ("over_tokens", "expected"),
    [(4, Admission(8, "wait", 1, staleness_policy="drop")), (5, Admission(8)), (1_000, Admission(8))],
)
def test_a_cap_that_older_tokens_were_trained_under_drops_nothing(over_tokens: int, expected: Admission):
    config = RunConfig(staleness_policy="drop", max_staleness=1, queue_capacity_samples=8)
    run = replace(observed(), delivered=KEEPING, staleness=((1, 4_000), (2, over_tokens)))
    assert likeliest(config, run).admission == expected


def test_a_stretch_shows_how_its_rollouts_were_scheduled_and_what_it_held():
    run = seen(answers())
    assert run.scheduling == SeenScheduling(
        queued_alone_ratio=0.9,
        delivery_s=0.25,
        disorder_ratios={"fifo": 0.025, "lifo": 0.975, "oldest_first": 0.2},  # alone: each by its own oldest token
        untaken_high_samples=20,
        untrained_high_samples=28,
        taken_on_arrival_ratio=0.25,
        filtered_queued_ratio=0.75,
    )
    assert run.load == SeenLoad(
        running_samples=9.0,
        in_flight_samples=17.5,
        queued_samples=4.5,
        wait_samples_ratio=0.0,
        wait_staleness_cap_ratio=0.0,
    )


@pytest.mark.parametrize(("others", "mean_samples", "queued_samples"), [(0, 6.5, 6.5), (1, 6.5, 4.5), (0, None, 4.5)])
def test_depths_that_only_takers_record_miss_what_enters_so_the_times_of_the_samples_count(
    others: int, mean_samples: float | None, queued_samples: float
):
    given = answers()
    shown = {"samples": 19, "taken_on_arrival": 19, "queued_mean_samples": mean_samples, "depths_of_others": others}
    filling = given["batch_filling"].with_columns(**{name: pl.lit(value) for name, value in shown.items()})
    run = seen({**given, "batch_filling": filling})
    assert run.load.queued_samples == queued_samples
    assert run.scheduling.taken_on_arrival_ratio is None  # 19 samples: too few to tell


def test_too_few_samples_of_a_group_or_several_queues_show_nothing():
    whole = seen(answers(group_deliveries=rows("samples queued_earlier delivery_s", (20, 10, None))))
    assert whole.scheduling.queued_alone_ratio == 0.5
    # Of groups that are queued at once the oldest token of any member counts: of 19 pairs.
    assert whole.scheduling.disorder_ratios["oldest_first"] is None
    deliveries = rows("samples queued_earlier delivery_s", (19, 19, None))
    queues = rows("queue depth_mean_samples", ("a", 4.5), ("b", 1.0))
    few = seen(answers(group_deliveries=deliveries, queue_level=queues))
    assert few.scheduling.queued_alone_ratio is None
    assert few.load.queued_samples is None


@pytest.mark.parametrize(("unattributed_s", "ratio"), [(1.0, 0.0), (1.01, None)])
def test_waits_that_no_trainer_records_are_none_where_a_tenth_of_their_time_is_in_no_state(
    unattributed_s: float, ratio: float | None
):
    trainer = rows(
        "role state reason bucket_start_ns gpu_s",
        ("trainer", "train", None, 0, 10.0 - unattributed_s),
        ("trainer", "unattributed", None, 0, unattributed_s),
    )
    time = TIMELINE.filter(role="sampler").vstack(trainer.cast(TIMELINE.schema))
    assert observe(CONFIG, 4, answers(), STRETCH.clip(time, BUCKET_NS), STRETCH).load.wait_samples_ratio == ratio


def showing(**facts: object) -> Observed:
    return replace(observed(), scheduling=SeenScheduling(**facts))


PROPERTIES: dict[str, tuple[RunConfig, Callable[[Scheduling], object]]] = {
    "delivery": (RunConfig(), lambda each: each.delivery),
    "queue_order": (RunConfig(delivery="group"), lambda each: each.settings.queue_order),
    "dispatch": (RunConfig(delivery="group"), lambda each: each.settings.dispatch),
    "dequeue": (RunConfig(delivery="group"), lambda each: each.settings.dequeue),
    "filters_taken": (RunConfig(delivery="group"), lambda each: each.settings.filters_taken),
    "in_flight_until_trained": (
        RunConfig(delivery="group", max_in_flight_samples=100),
        lambda each: each.admission.in_flight_until_trained,
    ),
}
"""Properties of the scheduling, with a config that leaves only this one open, and where a candidate has it."""


def alone(ratio: float | None) -> Observed:
    return showing(queued_alone_ratio=ratio)


def disorder(fifo: float, lifo: float, oldest_first: float) -> Observed:
    return showing(disorder_ratios={"fifo": fifo, "lifo": lifo, "oldest_first": oldest_first})


def together(ratio: float | None) -> Observed:
    return replace(observed(), one_engine_groups_ratio=ratio)


def arriving(awaited_ratio: float | None, on_arrival_ratio: float | None) -> Observed:
    load = SeenLoad(wait_samples_ratio=awaited_ratio)
    return replace(showing(taken_on_arrival_ratio=on_arrival_ratio), load=load)


def in_flight(until_taken: int | None, until_trained: int | None) -> Observed:
    return showing(untaken_high_samples=until_taken, untrained_high_samples=until_trained)


@pytest.mark.parametrize(
    ("name", "stated", "run", "possible"),
    [
        ("delivery", None, alone(0.8), ["sample"]),
        ("delivery", None, alone(0.2), ["group"]),
        ("delivery", None, alone(0.79), ["group", "sample"]),
        ("delivery", None, alone(0.21), ["group", "sample"]),
        ("delivery", None, alone(None), ["group", "sample"]),
        ("delivery", None, replace(alone(None), group_size=1), ["group"]),
        ("delivery", "sample", alone(0.21), ["sample"]),
        # The orders that hardly any pair contradicts; where all are contradicted, none matters.
        ("queue_order", None, disorder(0.05, 0.95, 0.06), ["fifo"]),
        ("queue_order", None, disorder(0.3, 0.7, 0.0), ["oldest_first"]),
        ("queue_order", None, disorder(1.0, 0.0, 0.9), ["lifo"]),
        ("queue_order", None, disorder(0.01, 0.99, 0.01), ["fifo", "oldest_first"]),
        ("queue_order", None, disorder(0.5, 0.5, 0.5), ["fifo"]),
        ("queue_order", None, showing(), ["fifo"]),
        ("queue_order", "oldest_first", disorder(0.0, 1.0, 0.19), ["oldest_first"]),
        ("queue_order", "fifo", disorder(0.5, 0.5, 0.5), ["fifo"]),
        ("dispatch", "least_loaded", together(1.0), ["least_loaded"]),
        ("dispatch", None, together(0.95), ["pulled"]),
        ("dispatch", None, together(0.949), ["least_loaded", "pulled"]),
        ("dispatch", None, together(None), ["least_loaded"]),
        # Trainers that take samples as they come take as many on arrival as arrive while they wait.
        ("dequeue", None, arriving(0.5, None), ["batch"]),
        ("dequeue", None, arriving(0.5, 0.1), ["batch"]),
        ("dequeue", None, arriving(0.5, 0.101), ["as_they_come", "batch"]),
        ("dequeue", None, arriving(0.5, 0.249), ["as_they_come", "batch"]),
        ("dequeue", None, arriving(0.5, 0.25), ["as_they_come"]),
        ("dequeue", None, arriving(0.05, 0.025), ["as_they_come"]),
        ("dequeue", None, arriving(0.049, 0.049), ["batch"]),  # trainers that hardly wait show nothing
        ("dequeue", None, arriving(None, 0.499), ["as_they_come", "batch"]),  # no wait was recorded
        ("dequeue", None, arriving(None, 0.5), ["as_they_come"]),
        ("filters_taken", None, showing(), [False]),
        ("filters_taken", None, showing(filtered_queued_ratio=0.5), [False]),
        ("filters_taken", None, showing(filtered_queued_ratio=0.51), [True]),
        # The limit of 100 counts the batch in training where it holds with that batch.
        ("in_flight_until_trained", None, in_flight(100, 100), [True]),
        ("in_flight_until_trained", None, in_flight(100, 101), [False]),
        ("in_flight_until_trained", None, in_flight(85, 90), [True]),
        ("in_flight_until_trained", None, in_flight(85, 89), [False, True]),
        ("in_flight_until_trained", None, in_flight(101, 120), [False, True]),
        ("in_flight_until_trained", None, in_flight(None, None), [False, True]),
        ("in_flight_until_trained", True, in_flight(85, 89), [True]),
        ("in_flight_until_trained", False, in_flight(100, 101), [False]),
        # What the run plainly shows contradicts what the config states.
        ("delivery", "sample", alone(0.2), ["group"]),
        ("delivery", "group", alone(0.8), ["sample"]),
        ("queue_order", "oldest_first", disorder(0.0, 1.0, 0.2), ["fifo"]),
        ("in_flight_until_trained", True, in_flight(100, 101), [False]),
        ("in_flight_until_trained", False, in_flight(100, 100), [True]),
    ],
)
def test_the_scheduling_is_as_the_run_shows_and_else_as_the_config_states(
    name: str, stated: object, run: Observed, possible: list[object]
):
    config, value_of = PROPERTIES[name]
    read = read_scheduling(config if stated is None else replace(config, **{name: stated}), run)
    assert [value_of(each) for each in read.possible] == possible
    assert read.contradicted == (stated is not None and stated not in possible)


@pytest.mark.parametrize(
    ("ages", "prefetched", "waits_for_queued"),
    [
        (((1, 50), (2, 50)), None, True),
        (((1, 50), (2, 49), (3, 1)), None, True),
        (((1, 50), (2, 48), (5, 2)), None, False),
        (((1, 50), (3, 50)), 1.0, True),
        ((), None, True),
    ],
    ids=["none beyond the cap", "one in a hundred", "two in a hundred", "prefetched batches age", "nothing known"],
)
def test_samples_trained_beyond_the_cap_show_that_publications_wait_for_running_ones_only(
    ages: tuple[tuple[int, int], ...], prefetched: float | None, waits_for_queued: bool
):
    run = replace(observed(), delivered=KEEPING, oldest_staleness=ages, prefetched_batches=prefetched)
    config = RunConfig(staleness_policy="publication_waits", max_staleness=2, batches_ahead=0)
    assert likeliest(config, run).admission == Admission(
        None, "wait", 2, staleness_policy="publication_waits", waits_for_queued=waits_for_queued
    )


@pytest.mark.parametrize(
    ("facts", "possible"),
    [
        ({"delivered": DROPPING}, ["drop"]),
        ({"load": SeenLoad(wait_staleness_cap_ratio=0.011)}, ["publication_waits"]),
        ({"load": SeenLoad(wait_staleness_cap_ratio=0.01)}, [None, "drop", "admission"]),
        ({"engine_state_s": {("no_requests", "staleness_cap"): 1e9}}, ["admission"]),
        ({}, [None, "drop", "admission"]),
    ],
)
def test_how_a_cap_is_kept_that_the_config_does_not_say_how_to_keep(
    facts: dict[str, object], possible: list[str | None]
):
    config = RunConfig(delivery="group", max_staleness=1)
    run = replace(observed(), **({"delivered": KEEPING, "staleness": ((1, 10),)} | facts))
    admissions = [each.admission for each in read_scheduling(config, run).possible]
    assert [each.staleness_policy if each.max_staleness else None for each in admissions] == possible


@pytest.mark.parametrize(("dropped_tokens", "policy"), [(10, "admission"), (11, "drop")])
def test_a_run_that_drops_more_than_one_in_a_hundred_keeps_its_cap_by_dropping_whatever_its_config_states(
    dropped_tokens: int, policy: str
):
    config = RunConfig(delivery="group", max_staleness=4, staleness_policy="admission")
    read = read_scheduling(config, replace(observed(), delivered=Delivered(1_000 - dropped_tokens, dropped_tokens, 0)))
    assert [each.admission.staleness_policy for each in read.possible] == [policy]
    assert read.contradicted == (policy == "drop")


def test_what_is_left_open_is_tried_in_every_combination_up_to_eight():
    config = RunConfig(max_in_flight_samples=100, max_staleness=1)
    run = replace(showing(), one_engine_groups_ratio=0.0, delivered=KEEPING, staleness=((1, 10),))
    candidates = read_scheduling(config, run).possible
    # Of 3 ways to keep the cap, 2 limits, 2 dispatches, 2 deliveries.
    assert len(candidates) == len(set(candidates)) == 8
