import math
import re
import typing
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rlscope_otel.recorder import Run
from rlscope_otel.schema import WAIT_REASONS

import rlscope
from rlscope.analysis.data_quality import ClockOffset, SampledEngine
from rlscope.analysis.result import Finding, LedgerState, Loss, Verdict
from rlscope.diagnose import RULES
from rlscope.model.causes import Bottleneck
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action
from rlscope.model.forecast.price import Price
from rlscope.model.forecast.ranking import CauseLoss, Ranking
from rlscope.model.forecast.result import NoModelResult
from rlscope.model.system import Admission
from rlscope.reports.text import findings
from rlscope.reports.text import verdict as verdict_words
from rlscope.trace.imported import Certainty, Imported, TableOrigin
from tests.reports.analysis_fixture import NO_ROWS, empty_analysis, full_analysis
from tests.reports.model_fixture import changing_model
from tests.trace_folder import worker, write_run

STRAGGLER = {"worker_id": "sampler-1", "tokens_per_s": 10.0, "median_tokens_per_s": 30.0, "slowdown_ratio": 0.33}
WRONG_WEIGHTS = {"gap": 0.02, "noise_gap": 3e-14, "early_gap": 0.01, "late_gap": 0.04, "fresh_tokens": 5000,
                 "seen_versions": 40}  # fmt: skip


def finding(rule, evidence):
    return Finding(rule, "warning", 1.0, evidence, None, None)


def test_every_rule_has_a_title_sentences_and_a_remedy_of_its_own():
    assert all(rule.title and (rule.sentences or rule.counts) and rule.remedy for rule in RULES)
    assert len({rule.title for rule in RULES}) == len({rule.remedy for rule in RULES}) == len(RULES)


def test_what_did_not_happen_is_not_in_the_sentence_of_a_finding():
    evidence = {"dropped_share_ratio": 0.1, "backpressure_share_ratio": 0.0}
    said = findings.sentence(finding("overproduction", evidence))
    assert said == "10.0% of the generated tokens were dropped over the whole run."
    evidence = {"checkpoint_gpu_s": 0.0, "eval_gpu_s": 30.0, "trainer_share_ratio": 0.3}
    said = findings.sentence(finding("checkpoint_cost", evidence))
    assert said == "Trainers spent 30 GPU-s evaluating. That is 30.0% of their GPU time over the whole run."


def test_braces_in_a_run_s_strings_are_not_fields():
    evidence = STRAGGLER | {"worker_id": "{tokens_per_s}{nothing}"}
    assert "{nothing}" in findings.sentence(finding("straggling_engine", evidence))


@pytest.mark.parametrize("bottleneck", typing.get_args(Bottleneck))
@pytest.mark.parametrize("with_losses", [True, False])
def test_every_verdict_has_a_headline_a_reason_and_a_next_step(bottleneck, with_losses):
    full = full_analysis()
    losses = (Loss(bottleneck, 12.0, 0.25), Loss("samplers", 1.0, 0.01)) if with_losses else ()
    verdict = Verdict(bottleneck, losses, "too few steps" if bottleneck == "unknown" else None, 0, 10**10)
    for rules in (full.findings, ()):
        analysis = replace(full, verdict=verdict, findings=rules)
        for text in (verdict_words.headline(analysis), verdict_words.why(analysis), verdict_words.next_step(analysis)):
            assert text and "{" not in text and "None" not in text
        assert not verdict_words.headline(analysis).endswith(".")
        assert verdict_words.why(analysis).endswith(".")


@pytest.mark.parametrize("side", ["samplers", "trainers"])
def test_a_side_that_is_mostly_unrecorded_is_sent_to_the_lines_of_code_to_add(side):
    reason = f"71% of the {side}' GPU time (64 of 90 GPU-seconds) is in no recorded state"
    analysis = replace(
        full_analysis(), verdict=Verdict("unknown", (), reason, 0, 10**10, unrecorded_side=side), findings=()
    )
    assert verdict_words.why(analysis) == f"{reason}."
    assert verdict_words.next_step(analysis).startswith(f"Record what the {side} do or wait for: `rlscope doctor`")


def test_a_run_with_all_data_whose_waits_no_cause_covers_is_not_told_to_record_more():
    reason = "12 GPU-seconds waited for what no verdict covers (barrier), more than for any cause that it knows"
    full = full_analysis()
    analysis = replace(full, verdict=replace(full.verdict, bottleneck="unknown", unknown_reason=reason), findings=())
    assert verdict_words.headline(analysis) == "GPUs wait for something that rlscope has no verdict for"
    assert verdict_words.next_step(analysis).startswith("Look up in the worker timelines of the report which workers")
    refused = replace(full.data_quality, imported=Imported("verl", (), (), "wall", no_verdict=("no config",)))
    assert verdict_words.headline(replace(analysis, data_quality=refused)) == "Not enough data for a verdict"
    few_steps = replace(analysis, run=replace(full.run, steps=2))
    assert verdict_words.headline(few_steps) == "Not enough data for a verdict"
    assert verdict_words.next_step(few_steps).startswith("Record the missing data and analyze again.")


def test_trainers_that_wait_for_a_slow_one_are_sent_to_it():
    evidence = {"worker_id": "t1", "compute_s": 3.0, "median_compute_s": 2.0, "barrier_gpu_s": 9.0}
    slow = Finding("straggling_trainer", "warning", 9.0, {**evidence, "trainer_share_ratio": 0.3}, None, None)
    rows = [(role, "waiting", "barrier", at, 1.0) for role in ("trainer", "sampler") for at in (0, 10**9)]
    timeline = pl.DataFrame(rows, ("role", "state", "reason", "bucket_start_ns", "gpu_s"), orient="row")
    full, verdict = full_analysis(), Verdict("unknown", (), "waits at a barrier", 0, 10**10)
    answers = {**full.answers, "ledger_timeline": timeline}
    analysis = replace(full, verdict=verdict, findings=(slow,), answers=answers)
    said = "The other trainers wait for t1. Check that trainer's host and GPU"
    assert verdict_words.next_step(analysis).startswith(said)
    assert not verdict_words.next_step(replace(analysis, findings=())).startswith(said)


def test_the_lines_of_code_of_the_doctor_name_methods_and_reasons_of_the_recorder(tmp_path):
    run = write_run(tmp_path, [worker("e0", "sampler", 0, 10**10), worker("t0", stop_ns=10**10)])
    lines = " ".join(check.how for check in rlscope.doctor(run).checks)
    methods, reasons = re.findall(r"run\.(\w+)\(", lines), re.findall(r'wait\("(\w+)"\)', lines)
    assert {"samples", "backpressure", "requests", "environment"} == set(reasons) <= set(WAIT_REASONS)
    assert len(set(methods)) == 9 and all(callable(getattr(Run, method)) for method in methods)


def test_while_the_results_are_invalid_no_action_is_named():
    ranked = replace(full_analysis(), model=changing_model())
    wrong = finding("weights_not_applied", WRONG_WEIGHTS)
    assert verdict_words.first_action(ranked) is changing_model().ranking.actions[0]
    invalid = replace(ranked, findings=(wrong,))
    assert verdict_words.actions_of(invalid) == () and verdict_words.first_action(invalid) is None
    unknown = replace(ranked, verdict=Verdict("unknown", (), "too few steps", 0, 10**10))
    assert verdict_words.actions_of(unknown) == ()


def judged(*losses, tied=(), model=None):
    """The full analysis with the first of these losses as its verdict, without findings."""
    analysis = replace(full_analysis(), verdict=Verdict(losses[0].cause, losses, None, 0, 10**10, tied), findings=())
    return analysis if model is None else replace(analysis, model=model)


def limited(ranking=None, **limits):
    """The made model result under these limits."""
    made = changing_model()
    scheduling = made.model_config.scheduling
    candidates = (replace(scheduling, admission=replace(scheduling.admission, **limits)),)
    return replace(made, model_config=replace(made.model_config, candidates=candidates), ranking=ranking or Ranking())


TIED_WITH_THE_CAP = "; throughput is limited almost as much by the staleness cap"


def test_causes_that_cost_as_much_are_named_in_the_headline():
    analysis = judged(Loss("samplers", 12.0, 0.25), Loss("weight_updates", 11.0, 0.2), tied=("weight_updates",))
    told = "Trainers wait for samples 25.0% of the time; throughput is limited almost as much by the weight updates"
    assert verdict_words.headline(analysis) == told


@pytest.mark.parametrize(
    ("cap", "blocked_gpu_s", "name"),
    [(4, 0.0, "staleness cap"), (None, 1.0, "staleness cap"), (None, 0.0, "cap on samples in flight")],
)
def test_a_run_without_a_staleness_cap_is_not_said_to_be_limited_by_one(cap, blocked_gpu_s, name):
    blocked = Loss("staleness_cap", blocked_gpu_s, 0.0)
    of_samplers = judged(Loss("samplers", 12.0, 0.25), blocked, tied=("staleness_cap",))
    run = replace(of_samplers.run, max_staleness=cap)
    assert verdict_words.headline(replace(of_samplers, run=run)).endswith(f"almost as much by the {name}")
    assert verdict_words.label(replace(judged(blocked), run=run)) == f"Bottleneck: {name}"


@pytest.mark.parametrize(
    ("policy", "dropped_gpu_s", "words"),
    [
        ("drop", 5.0, ", because samplers spend 5.0% of their time on samples that are dropped as too stale"),
        ("drop", 4.9, TIED_WITH_THE_CAP),
        ("admission", 5.0, TIED_WITH_THE_CAP),
    ],
)
def test_trainers_that_wait_for_what_the_cap_drops_are_one_story(policy, dropped_gpu_s, words):
    losses = (Loss("samplers", 12.0, 0.25), Loss("trainers", 10.0, 0.1, dropped_gpu_s=dropped_gpu_s))
    model = limited(max_staleness=2, staleness_policy=policy)
    analysis = judged(*losses, tied=("staleness_cap",), model=model)
    assert verdict_words.headline(analysis) == f"Trainers wait for samples 25.0% of the time{words}"


@pytest.mark.parametrize(
    ("blocked", "words"),
    [
        (
            [("trainer", "waiting_for_staleness_cap", None)],
            "trainers held back weight updates for 2 GPU-s (25.0% of all GPU time) to stay within",
        ),
        (
            [("sampler", "no_requests", "staleness_cap")],
            "samplers paused for 2 GPU-s (25.0% of all GPU time) because of the staleness cap",
        ),
        (
            [("trainer", "waiting_for_staleness_cap", None), ("sampler", "no_requests", "staleness_cap")],
            "the staleness cap blocked samplers or trainers for 2 GPU-s",
        ),
    ],
)
def test_the_reason_says_which_side_the_cap_blocked(blocked, words):
    states = [*blocked, ("trainer", "training", None), ("sampler", "no_requests", "backpressure")]
    rows = [(*state, start_ns, 1.0) for state in states for start_ns in (0, 10**9)]
    timeline = pl.DataFrame(rows, ("role", "state", "reason", "bucket_start_ns", "gpu_s"), orient="row")
    analysis = judged(Loss("staleness_cap", 2.0, 0.25))
    analysis = replace(analysis, answers={**analysis.answers, "ledger_timeline": timeline})
    assert words in verdict_words.why(analysis)


@pytest.mark.parametrize(
    ("states", "name", "next_step"),
    [
        (["eval"], "evaluation", "Evaluate less often, or evaluate on GPUs that do not train."),
        (["checkpoint"], "checkpoints", "Save less often, or save in the background."),
        (
            ["checkpoint", "eval"],
            "checkpoints and evaluation",
            "Save and evaluate less often, save in the background, or evaluate on GPUs that do not train.",
        ),
    ],
)
def test_of_checkpoints_and_evaluation_only_what_trainers_did_is_named(states, name, next_step):
    rows = [("trainer", state, None, start_ns, 1.0) for state in states for start_ns in (0, 10**9)]
    # Samplers that evaluate do what they are there for.
    rows.append(("sampler", "eval", None, 0, 1.0))
    timeline = pl.DataFrame(rows, ("role", "state", "reason", "bucket_start_ns", "gpu_s"), orient="row")
    analysis = judged(Loss("checkpoints", 2.0, 0.25))
    analysis = replace(analysis, answers={**analysis.answers, "ledger_timeline": timeline})
    assert verdict_words.label(analysis) == f"Bottleneck: {name}"
    assert verdict_words.headline(analysis) == f"Trainers spend 25.0% of their time on {name}"
    assert f"trainers spent 2 GPU-s on {name} (25.0% of trainer GPU time)." in verdict_words.why(analysis)
    assert verdict_words.next_step(replace(analysis, model=NoModelResult("none"))).strip() == next_step


@pytest.mark.parametrize(
    ("cause", "role", "is_over", "end_s", "is_named"),
    [
        ("samplers", "sampler", False, 84.9, True),
        # Its next flush may be on its way.
        ("samplers", "sampler", False, 85.0, False),
        # It stopped on purpose, or was started again.
        ("samplers", "sampler", True, 40.0, False),
        ("samplers", "trainer", False, 40.0, False),
        # Samples are not what is short.
        ("trainers", "sampler", False, 40.0, False),
    ],
)
def test_a_sampler_that_died_is_a_reason_for_the_lack_of_samples_and_started_again_first(
    cause, role, is_over, end_s, is_named
):
    run = replace(full_analysis().run, started_ns=10**9, duration_s=100.0)
    rows = [("e0", "sampler", 1, 101.0, True), ("e1", role, 2, 1.0 + end_s, is_over)]
    extents = pl.DataFrame(rows, ("worker_id", "role", "gpu_count", "end_ns", "is_over"), orient="row")
    extents = extents.with_columns(end_ns=(pl.col("end_ns") * 1e9).cast(pl.Int64))
    analysis = judged(Loss(cause, 2.0, 0.25))
    analysis = replace(analysis, run=run, answers={**analysis.answers, "worker_extents": extents})
    said = "e1 recorded no end and nothing in the last 15.1 s of the run: 2 sampler GPUs did not sample."
    assert verdict_words.why(analysis).endswith(said) is is_named
    first = "Find out why e1 died, and start it again. "
    assert verdict_words.next_step(analysis).startswith(first) is is_named


def test_a_cap_that_drops_samples_and_makes_nothing_wait_is_named():
    def headline(dropped_gpu_s):
        losses = (Loss("staleness_cap", 0.0, 0.0), Loss("trainers", 10.0, 0.1, dropped_gpu_s=dropped_gpu_s))
        return verdict_words.headline(judged(*losses, model=limited(max_staleness=2, staleness_policy="drop")))

    dropped = "because samplers spend 5.0% of their time on samples that are dropped as too stale"
    assert headline(5.0) == f"The staleness cap limits throughput, {dropped}"
    assert headline(4.9) == "A limit on samples in flight limits throughput"


@pytest.mark.parametrize(
    ("pause_s", "kv_kept", "pauses"),
    [(1.0, True, True), (0.0, False, True), (0.0, True, False)],
)
def test_updates_that_pause_engines_are_the_reason_for_the_waits_and_others_another_cause(pause_s, kv_kept, pauses):
    made, gains = changing_model(), np.full(4, 0.2)
    updates = Action("fix", "weight_updates", "weight_updates", 2.0, None, gains, Price(), Price(), None)
    losses = (CauseLoss("samplers", Estimate(0.3, 0.3, 0.3), gains),)
    update = replace(made.calibration.system.update, engine_pause_s=pause_s, kv_kept=kv_kept)
    system = replace(made.calibration.system, update=update)
    made = replace(made, calibration=replace(made.calibration, system=system), ranking=Ranking((updates,), losses))
    analysis = judged(Loss("samplers", 12.0, 0.25), Loss("weight_updates", 9.0, 0.1), model=made)
    paused = ", partly because weight updates pause the engines" * pauses
    assert verdict_words.headline(analysis) == f"Trainers wait for samples 25.0% of the time{paused}"
    aside = "This addresses the weight updates, not the bottleneck."
    assert (aside in verdict_words.next_step(analysis)) is not pauses
    tied = replace(analysis, verdict=replace(analysis.verdict, tied_with=("weight_updates",)))
    beside = "; throughput is limited almost as much by the weight updates"
    assert verdict_words.headline(tied) == f"Trainers wait for samples 25.0% of the time{beside}"


@pytest.mark.parametrize(
    ("share_ratio", "headline"),
    [
        (0.0499, "The environment limits throughput"),
        (0.05, "Waiting for the environment takes 5.0% of all GPU time"),
    ],
)
def test_a_cause_whose_waits_cost_few_gpu_seconds_is_not_called_the_largest_loss(share_ratio, headline):
    analysis = judged(Loss("environment", 0.5, share_ratio), Loss("samplers", 50.0, 0.76))
    assert verdict_words.headline(analysis).startswith(headline)
    waited = "samples waited for the environment, and GPUs had no other work for 0.5 GPU-s (5.0% of all GPU time)."
    assert waited in verdict_words.why(analysis)


def test_the_gain_from_removing_the_cause_is_said_unless_an_action_gains_as_much():
    gain, made = Estimate(0.2, 0.2, 0.2), changing_model()
    loss, cost = Loss("trainers", 12.0, 0.25, gain_ratio=gain), CauseLoss("trainers", gain, np.full(4, 0.2))
    told = "Doubling the training speed would raise throughput by 20%."
    assert told in verdict_words.why(judged(loss, model=replace(made, ranking=Ranking((), (cost,)))))
    first = made.ranking.actions[0]
    for difference, is_said in ((0.0201, True), (0.0199, False)):
        other = replace(first, cause="trainers", gains=np.full(4, 0.2 - difference))
        analysis = judged(loss, model=replace(made, ranking=Ranking((other,), (cost,))))
        assert (told in verdict_words.why(analysis)) is is_said


@pytest.mark.parametrize(
    ("admission", "removed"),
    [
        (Admission(max_staleness=1, queue_capacity_samples=8), "Removing the staleness cap would"),
        (
            Admission(max_staleness=1, max_in_flight_samples=9),
            "Removing the staleness cap and the limit on samples in flight would",
        ),
        (Admission(max_running_samples=9), "Removing the limit on running samples would"),
    ],
)
def test_the_limits_whose_removal_gains_are_those_of_the_run(admission, removed):
    gain, made = Estimate(0.2, 0.2, 0.2), changing_model()
    scheduling = replace(made.model_config.scheduling, admission=admission)
    made = replace(made, model_config=replace(made.model_config, candidates=(scheduling,)))
    loss, cost = Loss("staleness_cap", 2.0, 0.25, gain_ratio=gain), CauseLoss("staleness_cap", gain, np.full(4, 0.2))
    assert removed in verdict_words.why(judged(loss, model=replace(made, ranking=Ranking((), (cost,)))))


def test_weights_that_do_not_arrive_are_an_alarm_and_fixed_first():
    full = full_analysis()
    assert verdict_words.alarm(full) is None
    wrong = finding("weights_not_applied", WRONG_WEIGHTS)
    analysis = replace(full, findings=(wrong, *full.findings))
    assert verdict_words.alarm(analysis).startswith("The samplers do not run the trained policy")
    assert verdict_words.next_step(analysis).startswith("Fix “weights not applied” (below) before anything else")
    assert "against 3.00e-14 in the first step" in findings.sentence(wrong)


def test_gaps_name_each_kind_once_and_skip_tables_without_drops():
    lines = verdict_words.gap_lines(full_analysis())
    assert len(lines) == 5
    assert "812 rows of engine_steps" in lines[1]
    assert verdict_words.gap_lines(empty_analysis()) == []


def gap_line(**changed):
    """The one gap of a run of which nothing but this of the quality of its data is known."""
    quality = replace(empty_analysis().data_quality, **changed)
    (line,) = verdict_words.gap_lines(replace(empty_analysis(), data_quality=quality))
    return line


@pytest.mark.parametrize(
    ("knows_busy", "words"),
    [(True, "comes from the engine's own counter"), (False, "is unknown and counted as generating")],
)
def test_an_engine_that_was_sampled_is_named_with_its_interval_and_what_that_cannot_tell(knows_busy, words):
    line = gap_line(sampled_engines=(SampledEngine("e0", 0.5, knows_busy),))
    assert line.startswith("e0 was polled about every 500 ms:") and words in line


CORRECTED = ClockOffset("b", "a", 5.0, 0.042, is_corrected=True)


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        # A clock with one bound is off by at least that.
        (ClockOffset("b", "a", 0.03, None), "is at least 30 ms ahead of that of a; times are not corrected."),
        (ClockOffset("b", "a", -0.03, None), "is at least 30 ms behind that of a; times are not corrected."),
        (ClockOffset("b", "a", 0.03, 0.002), "is 30 ms ± 2 ms ahead of that of a; times are not corrected."),
        (CORRECTED, "is 5 s ± 42 ms ahead of that of a; its times are corrected."),
        (
            replace(CORRECTED, offset_s=-5.0, drift_ratio=1e-4),
            "is 5 s ± 42 ms behind that of a, drifts by +100 ppm; its times are corrected.",
        ),
    ],
)
def test_a_clock_that_is_off_is_named_with_offset_and_drift(offset, words):
    assert gap_line(clock_offsets=(offset,)) == f"The clock of b {words}"


@pytest.mark.parametrize(
    ("spread_s", "words"),
    [
        (None, ""),
        (0.042, "Times from one host to another are known to ± 42 ms."),
        (
            math.inf,
            "Times from one host to another may be off: nothing recorded bounds how far the hosts' clocks differ.",
        ),
    ],
)
def test_what_is_uncertain_between_hosts_is_said_and_nothing_of_one_host(spread_s, words):
    quality = replace(empty_analysis().data_quality, clock_uncertainty_s=spread_s)
    assert verdict_words.between_hosts(replace(empty_analysis(), data_quality=quality)) == words


@pytest.mark.parametrize(
    ("tables", "has_waits", "label", "asks_for"),
    [
        ((), False, "Trainers wait for samples", "Pass the engines' logs with --engine-log"),
        (("engine_steps",), False, "Trainers wait for samples", "The engines' logs do not show how long a pass takes"),
        ((), True, "Bottleneck: samplers", "Speed up sampling"),
        (None, False, "Bottleneck: samplers", "Speed up sampling"),
    ],
)
def test_a_log_of_the_trainer_alone_is_headed_by_no_more_than_it_shows(
    tables: tuple[str, ...] | None, has_waits: bool, label: str, asks_for: str
) -> None:
    analysis = full_analysis()
    origins = {table: TableOrigin(Certainty.RECORDED) for table in tables or ()}
    file = Imported("verl", ("console",), (), "relative", origins)
    states = tuple(each for each in analysis.ledger.states if each.role != "sampler" or each.reason is None)
    analysis = replace(
        analysis,
        data_quality=replace(analysis.data_quality, imported=None if tables is None else file),
        ledger=replace(
            analysis.ledger,
            states=(*states, LedgerState("sampler", "waiting", "barrier", 1, 0.1, None)) if has_waits else states,
        ),
        answers=NO_ROWS,
        model=empty_analysis().model,
    )
    assert verdict_words.label(analysis) == label
    assert verdict_words.headline(analysis).endswith("the log does not show what delays the samples") == (
        label[0] == "T"
    )
    assert verdict_words.next_step(analysis).startswith(asks_for)


def test_samplers_whose_engines_are_full_or_half_empty_are_not_told_to_run_more_requests_each() -> None:
    analysis = judged(Loss("samplers", 12.0, 0.25))
    step = verdict_words.next_step(analysis)
    assert step == "Speed up sampling: more requests per engine, faster engines, or more of them."
    half_empty = replace(analysis, findings=(finding("underfilled_engines", {}),))
    assert verdict_words.next_step(half_empty).startswith("Speed up sampling: give the engines more samples. They run")
    full = replace(analysis, findings=(*half_empty.findings, finding("full_kv_cache", {})))
    assert verdict_words.next_step(full).startswith("Speed up sampling: make room in the engines' KV caches")
