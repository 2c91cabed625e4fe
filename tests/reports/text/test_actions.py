"""Actions in words, and that no remedy of a finding pulls against the first of them."""

import typing
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from rlscope.analysis.result import Finding, TokenStaleness
from rlscope.diagnose import RULES
from rlscope.model.causes import LossCause
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.actions import Action, ActionWhat
from rlscope.model.forecast.price import Price, StalenessForecast
from rlscope.model.system import Layout
from rlscope.reports.text import actions, findings
from rlscope.reports.text.actions import Current
from tests.reports.analysis_fixture import full_analysis

GAIN = Estimate(0.2, 0.1, 0.3)
NOW, THEN = Layout(4, 4, 16), Layout(6, 2, 24)


def action(what="layout", cause="trainers", kind="change", before=NOW, after=THEN, **others) -> Action:
    made = Action(
        kind,
        what,
        cause,
        before,
        after,
        GAIN,
        0.95,
        np.array(GAIN),
        Price(),
        Price(StalenessForecast(1.5, 3, 4)),
        "measured",
    )
    return replace(made, **others)


WORDS = {
    "layout": (
        action(),
        "Use 6 trainer GPUs and 2 sampler GPUs instead of 4 and 4, and raise the limit on running requests per engine "
        "from 16 to 24",
    ),
    "running_limit": (
        action("running_limit", "samplers", after=Layout(4, 4, 24)),
        "Raise the limit on running requests per engine from 16 to 24",
    ),
    "asynchronous": (
        action("asynchronous", "lockstep"),
        "Run asynchronously on 6 trainer GPUs and 2 sampler GPUs, with up to 24 running requests per engine",
    ),
    "staleness_cap": (
        action("staleness_cap", "staleness_cap", before=1, after=2),
        "Raise the staleness cap from 1 to 2 versions",
    ),
    "in_flight_limit": (
        action("in_flight_limit", "staleness_cap", before=64, after=128),
        "Raise the limit on samples in flight from 64 to 128",
    ),
    "running_samples_limit": (
        action("running_samples_limit", "staleness_cap", before=64, after=128),
        "Raise the limit on running samples over all engines from 64 to 128",
    ),
    "queue_capacity_samples": (
        action("queue_capacity_samples", "trainers", before=32, after=64),
        "Raise the queue capacity from 32 to 64 samples",
    ),
    "publish_every": (
        action("publish_every", "weight_updates", before=1, after=2),
        "Publish weights every 2 optimizer steps instead of every step",
    ),
    "weight_updates": (
        action("weight_updates", "weight_updates", "fix", 2.0, None),
        "Make weight updates cheaper: overlap the transfer with generation and keep the KV cache",
    ),
    "environment": (
        action("environment", "environment", "fix", 2.0, None),
        "Make the environment faster, or run more environments in parallel",
    ),
    "slow_engines": (
        action("slow_engines", "samplers", "fix", None, None),
        "Fix the slow engines",
    ),
    "trainer_speed": (
        action("trainer_speed", "trainers", "fix", 1.0, 1.1),
        "Speed up training: shorten the training step, or add trainer GPUs",
    ),
    "checkpoints": (
        action("checkpoints", "checkpoints", "fix", 3.0, None),
        "Make checkpoints and evaluation cheaper: less often, in the background, or on other GPUs",
    ),
    "engine_speed": (
        action("engine_speed", "samplers", "fix", 1.0, 1.1),
        "Speed up sampling: use faster engines, or add sampler GPUs",
    ),
    "colocated": (
        action("colocated", "trainers", "fix", None, None),
        "Colocate: every GPU alternates between sampling and training",
    ),
}


def test_every_kind_of_action_is_written_here():
    assert set(WORDS) == set(typing.get_args(ActionWhat))
    assert {made.cause for made, _ in WORDS.values()} == set(typing.get_args(LossCause))


@pytest.mark.parametrize(("made", "words"), WORDS.values(), ids=WORDS)
def test_an_action_is_an_imperative(made, words):
    assert actions.what_to_do(made) == words


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        (("sampler-3",), "Fix the slow engine sampler-3"),
        (("a", "b", "c"), "Fix the slow engines a, b and c"),
        (("a", "b", "c", "d", "e"), "Fix the slow engines a, b, c and 2 more"),
    ],
)
def test_slow_engines_are_named_where_they_have_names(engines, words):
    slow = replace(action("slow_engines", "samplers", "fix", None, None), engines=engines)
    assert actions.what_to_do(slow) == words


@pytest.mark.parametrize(
    ("what", "cause", "reason"),
    [
        ("running_limit", "staleness_cap", ", because the staleness cap then blocks GPUs less"),
        ("layout", "staleness_cap", ", because the staleness cap then blocks GPUs less"),
        ("running_limit", "samplers", ""),
        ("staleness_cap", "staleness_cap", ""),
        ("publish_every", "staleness_cap", ""),
    ],
)
def test_what_makes_samples_sooner_says_how_that_helps_against_the_cap(what, cause, reason):
    sooner = action(what, cause, before=8.0, after=16.0)
    assert actions.effect(sooner) == f"Predicted throughput: {actions.gain_words(sooner.gain_ratio)}{reason}"


def aged(p95: int, steps_per_version: float = 1.0) -> StalenessForecast:
    """Staleness of which only the percentile matters."""
    return StalenessForecast(1.0, p95, p95, steps_per_version)


@pytest.mark.parametrize(
    ("own", "then", "words", "cell"),
    [
        (aged(1), aged(3), "Sample staleness (p95) rises from 1 to 3 versions", "1 → 3 versions"),
        (aged(3, 1.05), aged(1, 1.05), "Sample staleness (p95) falls from 3 to 1 version", "3 → 1 version"),
        (
            aged(1, 4.6),
            aged(3, 1.4),
            "Sample staleness (p95) falls from 4.6 to 4.2 optimizer steps, because trainers then publish every "
            "1.4 steps instead of every 4.6 steps",
            "4.6 → 4.2 steps",
        ),
        (
            aged(1),
            aged(1, 8.6),
            "Sample staleness (p95) rises from 1 to 8.6 optimizer steps, because trainers then publish every "
            "8.6 steps instead of every step",
            "1 → 8.6 steps",
        ),
        (aged(2, 2.0), aged(4, 1.0), "Sample staleness (p95) stays at 4 optimizer steps", "stays at 4 steps"),
        (
            aged(1, 4.6),
            aged(2, 4.6),
            "Sample staleness (p95) rises from 4.6 to 9.2 optimizer steps (weights are published "
            "every 4.6 steps on average)",
            "4.6 → 9.2 steps",
        ),
    ],
)
def test_where_publications_wait_for_the_cap_staleness_is_counted_in_optimizer_steps(own, then, words, cell):
    raised = action("staleness_cap", "staleness_cap", before=1, after=3, price=Price(then))
    assert actions.staleness_words(raised, Current(own)) == words
    assert actions.action_row(raised, full_analysis(), Current(own))["staleness p95"] == cell


@pytest.mark.parametrize(
    ("own", "then", "words", "cell"),
    [
        (2, 15, "rises from 2 to 15 versions", "2 → 15 versions, growing"),
        (15, 15, "stays at 15 versions", "stays at 15 versions, growing"),
    ],
)
def test_staleness_that_grows_says_how_long_a_run_it_is_for_and_what_holds_it(own, then, words, cell):
    raised = action(price=Price(replace(aged(then), horizon_steps=120)))
    held = "within 120 optimizer steps, and grows until a limit on samples in flight holds it"
    assert actions.staleness_words(raised, Current(aged(own))) == f"Sample staleness (p95) {words} {held}"
    assert actions.action_row(raised, full_analysis(), Current(aged(own)))["staleness p95"] == cell
    assert actions.age_words(replace(aged(then), horizon_steps=120), 2.0) == "30 steps, growing"


@pytest.mark.parametrize(
    ("ends", "steps_each", "words", "cell"),
    [
        ((3, 6), 1.0, "rises from 2 to 4 versions", "2 → 4 (3 to 6) versions"),
        ((3, 6), 2.0, "rises from 4 to 8 optimizer steps", "4 → 8 (6 to 12) steps"),
        ((4, 4), 1.0, "rises from 2 to 4 versions", "2 → 4 versions"),
    ],
    ids=["versions", "steps", "no width"],
)
def test_staleness_after_an_action_has_an_interval(ends, steps_each, words, cell):
    after = replace(aged(4), sample_p95_low=ends[0], sample_p95_high=ends[1])
    current = Current(aged(2), period_steps=None if steps_each == 1.0 else steps_each)
    changed = action(price=Price(after))
    assert actions.staleness_words(changed, current) == f"Sample staleness (p95) {words}"
    assert actions.action_row(changed, full_analysis(), current)["staleness p95"] == cell


def test_a_layout_whose_queue_would_grow_comes_with_the_limit_that_holds_it():
    limited = action("running_limit", "samplers", after=Layout(4, 4, 24), in_flight_limit=1152)
    words = (
        "Raise the limit on running requests per engine from 16 to 24, and limit samples in flight (started and not "
        "yet taken by trainers; no limit today) to 1,152"
    )
    assert actions.what_to_do(limited) == words
    assert actions.staleness_words(limited, Current(aged(2))) == (
        "Sample staleness (p95) rises from 2 to 3 versions; without the limit on samples in flight it would grow with "
        "every step"
    )
    row = actions.action_row(limited, full_analysis(), Current(aged(2)))
    assert row["what"] == f"{words} (max_running and max_in_flight_samples)"
    assert actions.cost_of(limited) == "restart"
    assert actions.limit_setting_of(action(), full_analysis().run) is None


def test_what_makes_samples_so_stale_that_it_comes_last_says_so():
    staler = action(
        "queue_capacity_samples", "trainers", "probe", before=128, after=256, price=Price(aged(4)), is_staler=True
    )
    last = "Ranked last despite its gain, because staleness rises by more than half"
    words = f"Sample staleness (p95) rises from 2 to 4 versions. {last}"
    assert actions.staleness_words(staler, Current(aged(2))) == words
    assert "Ranked last" not in actions.staleness_words(replace(staler, is_staler=False), Current(aged(2)))


@pytest.mark.parametrize(("gains", "says_why"), [((0.3, 0.2, 0.1), False), ((0.2, 0.2), False), ((0.2, 0.3), True)])
def test_beneath_the_table_stands_what_orders_it_where_the_gains_do_not(gains, says_why):
    ranked = [replace(action(), gain_ratio=Estimate(gain, gain, gain)) for gain in gains]
    below = actions.below_table(ranked)
    assert below.startswith("Each gain is for that change alone.")
    assert ("90% likely to gain 5% come first, then tests" in below) is says_why


@pytest.mark.parametrize(
    ("what", "before", "words"),
    [
        ("queue_capacity_samples", 512, "Lower the queue capacity from 512 to 64 samples"),
        ("in_flight_limit", 128, "Lower the limit on samples in flight from 128 to 64 samples"),
        (
            "in_flight_limit",
            None,
            "Limit samples in flight (started and not yet taken by trainers; no limit today) to 64",
        ),
    ],
)
def test_a_lower_limit_says_that_the_rate_stays_and_what_is_saved(what, before, words):
    dropped, trained = Estimate(0.7, 0.7, 0.7), Estimate(0.22, 0.22, 0.22)
    after = Price(StalenessForecast(1.0, 2, 2), Estimate(0.11, 0.01, 0.19), None, Estimate(0.75, 0.6, 0.9))
    lower = action(what, "trainers", "fresher", before, 64, gain_ratio=Estimate(0.006, 0.002, 0.01), price=after)
    lower = replace(lower, price_before=Price(None, dropped, None, trained))
    assert actions.what_to_do(lower) == words
    assert actions.effect(lower) == (
        "Predicted throughput: about the same, +0.6% (90% interval +0.2% to +1.0%). The dropped share "
        "of generated tokens falls from 70% to 11%. Long responses are dropped less often: of the longest 10%, 75% "
        "are trained on, up from 22%"
    )
    faster = replace(lower, kind="change", gain_ratio=GAIN, price_before=after)
    assert actions.effect(faster) == "Predicted throughput: +20% (90% interval +10% to +30%)"
    assert (actions.cost_of(lower), actions.direction_of(lower)) == ("restart", "fresher")
    below = actions.below_table([lower, action("weight_updates", kind="fix")])
    assert "Settings that only lower drops, staleness or GPUs come before engineering work." in below


@pytest.mark.parametrize(
    ("after", "words", "spared"),
    [
        (
            Layout(2, 8, 16),
            "Use 2 trainer GPUs instead of 6",
            "10 GPUs instead of 14, if the training",
        ),
        (
            Layout(1, 8, 16),
            "Use 1 trainer GPU instead of 6",
            "9 GPUs instead of 14, if the training",
        ),
        (Layout(6, 4, 16), "Use 4 sampler GPUs instead of 8", "10 GPUs instead of 14"),
    ],
)
def test_a_smaller_layout_says_that_the_rate_stays_and_which_gpus_are_spared(after, words, spared):
    gain = Estimate(-0.002, -0.01, 0.0)
    smaller = action("layout", "samplers", "cheaper", Layout(6, 8, 16), after, gain_ratio=gain)
    told = actions.effect(smaller)
    assert actions.what_to_do(smaller) == words
    assert told.startswith("Predicted throughput: about the same, −0.2% (90% interval −1.0% to 0%), on " + spared)
    fewer = "2 trainer GPUs" if after.trainer_gpus == 2 else "1 trainer GPU"
    assert told.endswith(f"if the training state fits on {fewer}") is (after.trainer_gpus < 6)
    assert (actions.cost_of(smaller), actions.direction_of(smaller)) == ("restart", None)
    assert "Settings that only lower" in actions.below_table([smaller, action("weight_updates", kind="fix")])
    other = action("publish_every", before=1.0, after=2.0)
    assert actions.below_table([other, smaller]).endswith("`rlscope compare BEFORE AFTER`.")
    assert actions.below_table([action(), other, smaller]).endswith("Actions 1 and 3 are alternatives to each other.")


def test_colocated_gpus_are_the_one_fix_that_says_how_stale_samples_become():
    colocated = action("colocated", "trainers", "fix", None, None)
    fresh = replace(colocated, price=Price(StalenessForecast(0.0, 0, 0)))
    assert actions.effect(fresh) == (
        "Best case, if trainer and engine fit on one GPU and switching takes no time: throughput +20% (90% "
        "interval +10% to +30%)"
    )
    assert actions.staleness_words(fresh, Current(aged(2))) == "Sample staleness (p95) falls from 2 to 0 versions"
    assert actions.action_row(fresh, full_analysis(), Current(aged(2)))["staleness p95"] == "2 → 0 versions"
    assert (actions.cost_of(fresh), actions.direction_of(fresh)) == ("engineering", None)


def test_a_probe_is_tried_for_as_many_steps_as_a_comparison_needs():
    words = actions.what_to_do(action(kind="probe"))
    assert words.startswith("Use 6 trainer GPUs") and words.endswith(
        " (gain may be under 5%: try it for 20 steps first)"
    )


def test_actions_of_one_list_count_staleness_in_one_unit():
    capped = action("staleness_cap", "staleness_cap", before=1, after=2, price=Price(aged(3)))
    rarer = action("publish_every", "weight_updates", before=2.0, after=4.0, price=Price(aged(2)))
    current = Current(aged(2), period_steps=2.0)
    assert actions.action_row(rarer, full_analysis(), current)["staleness p95"] == "4 → 8 steps"
    words = "Sample staleness (p95) rises from 4 to 6 optimizer steps"
    assert actions.staleness_words(capped, current) == words
    assert actions.action_row(capped, full_analysis(), current)["staleness p95"] == "4 → 6 steps"


@pytest.mark.parametrize(
    ("setting", "cap", "words", "cell"),
    [
        ((1.0, 2.0), None, "Sample staleness (p95) rises from 2 to 6 optimizer steps", "2 → 6 steps"),
        (
            (1.0, 2.0),
            4,
            "Sample staleness (p95) rises from 2 to 6 optimizer steps. With 2 steps per version, the cap of 4 versions "
            "allows 8 optimizer steps of staleness instead of 4",
            "2 → 6 steps, cap 8",
        ),
        (
            (2.0, 3.0),
            4,
            "Sample staleness (p95) rises from 4 to 9 optimizer steps. With 3 steps per version, the cap of 4 versions "
            "allows 12 optimizer steps of staleness instead of 8",
            "4 → 9 steps, cap 12",
        ),
        (
            (3.0, 2.0),
            4,
            "Sample staleness (p95) stays at 6 optimizer steps. The cap of 4 versions would then allow 8 optimizer "
            "steps",
            "stays at 6 steps, cap 8",
        ),
    ],
)
def test_staleness_under_rarer_publications_is_counted_in_optimizer_steps(setting, cap, words, cell):
    rarer = action("publish_every", "weight_updates", before=setting[0], after=setting[1])
    assert actions.staleness_words(rarer, Current(aged(2), cap)) == words
    assert actions.action_row(rarer, full_analysis(), Current(aged(2), cap))["staleness p95"] == cell


def test_rarer_publications_against_the_cap_say_how_much_less_is_dropped():
    rarer = action("publish_every", "staleness_cap", before=1.0, after=2.0)
    dropped, fewer = Estimate(0.32, 0.3, 0.34), Estimate(0.039, 0.0, 0.08)
    rarer = replace(rarer, price=replace(rarer.price, dropped_ratio=fewer), price_before=Price(None, dropped))
    assert actions.staleness_words(rarer, Current(aged(2), 4)).endswith(
        " instead of 4, so 3.9% of generated tokens are dropped instead of 32%"
    )


@pytest.mark.parametrize(
    ("made", "cost"),
    [
        (action(), "restart"),
        (action("running_limit", "samplers"), "engine_restart"),
        (action("queue_capacity_samples", before=1, after=2), "restart"),
        (action("trainer_speed", kind="fix", before=1.0, after=1.1), "engineering"),
        (action("asynchronous", "lockstep"), "engineering"),
    ],
)
def test_a_layout_costs_a_restart_a_running_limit_the_engines_and_a_fix_work(made, cost):
    assert actions.cost_of(made) == cost


@pytest.mark.parametrize(
    ("framework", "what", "setting"),
    [
        ("verl", "running_limit", "actor_rollout_ref.rollout.max_num_seqs"),
        ("TRL 1.0 with vLLM", "running_limit", "--max-num-seqs"),
        ("areal", "staleness_cap", "rollout.max_head_offpolicyness"),
        ("my own", "staleness_cap", "max_staleness"),
        ("my own", "layout", None),
    ],
)
def test_a_setting_is_named_as_the_framework_of_the_run_names_it(framework, what, setting):
    run = replace(full_analysis().run, settings={"framework": framework})
    assert actions.setting_of(action(what), run) == setting


def test_what_to_expect_is_the_gain_on_the_measured_rate_and_a_fix_promises_no_figure():
    expected = (
        "To verify, record 20 steps in steady state and run `rlscope compare`; expected: 1.2k (1.1k to 1.3k) tokens/s."
    )
    assert actions.verify_words(action(), 1000.0) == expected
    unmeasured = "To verify, record 20 steps in steady state and run `rlscope compare`."
    assert actions.verify_words(action(), None) == unmeasured
    assert actions.verify_words(action("trainer_speed", kind="fix", before=1.0, after=1.1), 1000.0) == unmeasured


def test_a_row_shows_gain_staleness_and_evidence_and_a_fix_neither_staleness_nor_evidence():
    analysis = full_analysis()
    row = actions.action_row(action(), analysis, Current(aged(2)))
    assert tuple(row.values())[1:6] == ("+20% (+10% to +30%)", "2 → 3 versions", "", "", "a restart")
    guessed = actions.action_row(action(grade="assumed", kind="probe"), analysis, Current(aged(2)))
    assert guessed["predicted gain"] == "+20% (+10% to +30%); speed not measured at this batch size"
    assert guessed["cost"] == "a restart; test 20 steps first"
    fixed = actions.action_row(action("trainer_speed", kind="fix", before=1.0, after=1.1), analysis, Current(aged(2)))
    assert tuple(fixed.values())[1:6] == ("+20% (+10% to +30%) for 10% faster training", "", "", "", "engineering work")
    removed = actions.action_row(WORDS["weight_updates"][0], analysis, Current(aged(2)))
    assert removed["predicted gain"] == "best case +20% (+10% to +30%), if weight updates took no time"
    assert actions.action_row(action(), analysis, Current(aged(3)))["staleness p95"] == "stays at 3 versions"
    assert actions.action_row(action(price=Price()), analysis, Current(aged(2)))["staleness p95"] == ""
    assert actions.action_row(action(), analysis, Current(None))["staleness p95"] == ""
    limit = actions.action_row(action("queue_capacity_samples", before=1, after=2), analysis, Current(aged(2)))
    assert (limit["predicted gain"], limit["staleness p95"]) == ("+20% (+10% to +30%)", "2 → 3 versions")


def test_the_effective_gain_weighs_the_rate_by_the_effective_sample_size_at_both_ages():
    full = full_analysis()
    tokens = TokenStaleness(0.0, 0, 0, 0, 2, ((0, 100),))
    moments = pl.DataFrame({"staleness": [0, 1, 2], "effective_share_ratio": [1.0, 0.8, 0.6]})
    analysis = replace(
        full, staleness=replace(full.staleness, tokens=tokens), answers={**full.answers, "version_moments": moments}
    )
    # Effective share 1 at a mean of 0 versions today, 0.7 at 1.5: 1.2 x 0.7 - 1.
    assert actions.effective_gain_ratio(action(), analysis) == pytest.approx(1.2 * 0.7 - 1.0)
    beyond = action(price=Price(StalenessForecast(2.5, 4, 5)))
    assert actions.effective_gain_ratio(beyond, analysis) is None
    assert actions.effective_gain_ratio(action(price=Price()), analysis) is None


@pytest.mark.parametrize(
    ("what", "direction"),
    [
        ("layout", "fewer_samples"),
        ("trainer_speed", "fewer_samples"),
        ("running_limit", "more_samples"),
        ("asynchronous", "more_samples"),
        ("engine_speed", "more_samples"),
        ("slow_engines", "more_samples"),
        ("staleness_cap", "more_samples"),
        ("in_flight_limit", "more_samples"),
        ("running_samples_limit", "more_samples"),
        ("queue_capacity_samples", "more_samples"),
        ("weight_updates", None),
        ("environment", None),
        ("publish_every", None),
    ],
)
def test_an_action_makes_more_samples_or_fewer_or_neither(what, direction):
    assert actions.direction_of(WORDS[what][0]) == direction


BY_NAME = {rule.name: rule for rule in RULES}


def found(rule) -> Finding:
    return Finding(rule.name, "warning", 1.0, {}, None, None)


def test_a_direction_opposes_what_opposes_it_and_never_itself():
    pairs = {(one, other) for one, others in actions.OPPOSITES.items() for other in others}
    assert pairs == {(other, one) for one, other in pairs} and all(one != other for one, other in pairs)


@pytest.mark.parametrize("what", WORDS)
def test_no_remedy_pulls_against_the_first_action(what):
    first, words = WORDS[what]
    aim = actions.direction_of(first)
    look_again = f"First {words[0].lower()}{words[1:]}; then look again."
    for rule in RULES:
        told, addressed = findings.remedy(found(rule), [first]), f"The first action addresses this. {words}."
        if rule.action == what or (what == "colocated" and rule.name in findings.WITHOUT_TURNS):
            assert told == f"{addressed} {rule.besides}".rstrip()
        elif rule.name == "starved_trainer" and first.cause == "weight_updates":
            assert told == look_again
        elif aim is None or rule.towards is None or (rule.keeps_remedy and rule.towards == aim):
            assert told == own_remedy(rule)
        elif rule.towards in actions.OPPOSITES[aim]:
            assert told == look_again
        elif rule.towards == aim:
            assert told == f"{addressed} {rule.besides}".rstrip()
        else:
            assert {rule.towards, aim} == {"fresher", "fewer_samples"} and told == own_remedy(rule)


def own_remedy(rule) -> str:
    return f"{rule.remedy} {rule.besides}".rstrip()


def test_a_remedy_names_a_later_action_that_is_against_its_finding():
    saved, faster = WORDS["checkpoints"][0], replace(WORDS["engine_speed"][0], kind="probe")
    told = findings.remedy(found(BY_NAME["starved_trainer"]), [saved, faster])
    assert told == "Action 2 addresses this. Speed up sampling: use faster engines, or add sampler GPUs."


@pytest.mark.parametrize(
    ("name", "framework", "settings"),
    [
        ("starved_trainer", "verl", "async_training.staleness_threshold (how far samplers run ahead)"),
        ("starved_trainer", "slime", "--rollout-num-gpus (sampler GPUs)"),
        ("starved_trainer", "nemo-rl", "grpo.async_grpo.max_trajectory_age_steps"),
        ("starved_trainer", "open-instruct", "--async_steps"),
        ("starved_trainer", "PipelineRL", "actor.llm_max_rollouts (requests per engine)"),
        ("weight_update_cost", "trl", ": weight_sync_steps (how often weights are published)."),
        ("weight_update_cost", "slime", ": --update-weights-interval (how often weights are published)."),
        (
            "checkpoint_cost",
            "verl",
            ": trainer.save_freq (how often it saves); trainer.test_freq (how often it evaluates).",
        ),
    ],
)
def test_a_remedy_names_the_settings_of_the_framework(name, framework, settings):
    rule = BY_NAME[name]
    told = findings.remedy(found(rule), (), framework)
    assert told.startswith(f"{rule.remedy} In {framework.lower()}: ") and settings in told
    assert told.endswith(rule.besides)


@pytest.mark.parametrize("framework", [None, "torch", 7])
def test_an_unknown_framework_adds_nothing_to_a_remedy(framework):
    for rule in RULES:
        assert findings.remedy(found(rule), (), framework) == own_remedy(rule)
    without_setting = BY_NAME["weight_update_cost"]
    assert findings.remedy(found(without_setting), (), "roll") == own_remedy(without_setting)


def test_each_finding_says_where_its_remedy_takes_the_run():
    assert {name: rule.towards for name, rule in BY_NAME.items() if rule.towards} == {
        "starved_trainer": "more_samples",
        "capped_staleness": "fresher",
        "overproduction": "fewer_samples",
        "underfilled_engines": "more_samples",
        "lockstep": "more_samples",
        "long_tail": "more_samples",
        "stale_reward": "fresher",
    }
