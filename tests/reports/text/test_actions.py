"""Actions in words: what to do, what it gains and costs, and the remedies of findings beside them."""

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
from rlscope.model.forecast.result import ModelResult
from rlscope.model.system import Layout
from rlscope.reports.text import actions, findings
from tests.reports.analysis_fixture import full_analysis
from tests.reports.model_fixture import changing_model

GAINS = np.repeat([0.1, 0.2, 0.3], [10, 80, 10])
"""A gain of 20%, 10% to 30%."""
NOW, THEN = Layout(4, 4, 16), Layout(6, 2, 24)


def action(what="layout", cause="trainers", kind="change", before=NOW, after=THEN, **others) -> Action:
    price = Price(StalenessForecast(1.5, 3, 4))
    made = Action(kind, what, cause, before, after, GAINS, Price(), price, "measured")
    return replace(made, **others)


def fix(what, cause="samplers", **others) -> Action:
    return action(what, cause, "fix", None, None, **others)


def aged(p95: int, steps_per_version: float = 1.0, **others) -> StalenessForecast:
    """Staleness of which only the percentile matters."""
    return StalenessForecast(1.0, p95, p95, steps_per_version, **others)


def model(
    p95: int | None = 2, steps_per_version: float = 1.0, cap: int | None = None, delayed: float = 1.0
) -> ModelResult:
    """A run with this staleness, publish interval and staleness cap; delayed: factor by which limits delay updates."""
    made = changing_model()
    own = Price(None if p95 is None else aged(p95, delayed))
    scheduling = made.model_config.scheduling
    capped = replace(scheduling, admission=replace(scheduling.admission, max_staleness=cap))
    return replace(
        made,
        forecasts=replace(made.forecasts, today=replace(made.forecasts.today, price=own)),
        calibration=replace(made.calibration, steps_per_version=steps_per_version),
        model_config=replace(made.model_config, candidates=(capped,)),
    )


OF_EACH_KIND = [
    (
        action(),
        "Use 6 trainer GPUs and 2 sampler GPUs instead of 4 and 4, with up to 24 running requests per engine instead "
        "of 16",
    ),
    (
        action("running_limit", "samplers", after=Layout(4, 4, 24)),
        "Raise the limit on running requests per engine from 16 to 24",
    ),
    (
        action("asynchronous", "lockstep"),
        "Run asynchronously on 6 trainer GPUs and 2 sampler GPUs, with up to 24 running requests per engine",
    ),
    (action("staleness_cap", "staleness_cap", before=1, after=2), "Raise the staleness cap from 1 to 2 versions"),
    (
        action("in_flight_limit", "staleness_cap", before=64, after=128),
        "Raise the limit on samples in flight from 64 to 128",
    ),
    (
        action("running_samples_limit", "staleness_cap", before=64, after=128),
        "Raise the limit on running samples over all engines from 64 to 128",
    ),
    (action("queue_capacity_samples", before=512, after=64), "Lower the queue capacity from 512 to 64 samples"),
    (action("publish_every", before=1, after=2), "Publish weights every 2 optimizer steps instead of every step"),
    (
        fix("weight_updates", "weight_updates"),
        "Make weight updates cheaper: overlap the transfer with generation and keep KV caches",
    ),
    (fix("environment", "environment"), "Make the environment faster, or run more environments in parallel"),
    (fix("slow_engines"), "Fix the slow engines"),
    (fix("slow_engines", engines=("a", "b", "c")), "Fix the slow engines: a, b and c"),
    (fix("slow_engines", engines=("a", "b", "c", "d", "e")), "Fix the slow engines: a, b, c and 2 more"),
    (fix("trainer_speed"), "Make training steps faster, or add trainer GPUs"),
    (
        fix("checkpoints", "checkpoints"),
        "Save or evaluate less often, in the background, or on other GPUs",
    ),
    (fix("engine_speed"), "Make the engines faster, or add sampler GPUs"),
    (fix("colocated"), "Colocate: all GPUs sample, then all GPUs train"),
]


def test_every_kind_of_action_is_written_here():
    assert {made.what for made, _ in OF_EACH_KIND} == set(typing.get_args(ActionWhat))
    assert {made.cause for made, _ in OF_EACH_KIND} == set(typing.get_args(LossCause))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        *OF_EACH_KIND,
        (action(after=Layout(6, 2, 16)), "Use 6 trainer GPUs and 2 sampler GPUs instead of 4 and 4"),
        (
            action("in_flight_limit", kind="fresher", before=None, after=64),
            "Add a limit of 64 samples in flight, generating or queued",
        ),
        (
            action("running_limit", after=Layout(4, 4, 24), in_flight_limit=1152),
            "Raise the limit on running requests per engine from 16 to 24, and add a limit of 1,152 samples in flight, "
            "generating or queued",
        ),
        (
            action("staleness_cap", kind="probe", before=1, after=2),
            "Raise the staleness cap from 1 to 2 versions (the gain may be under 5%: test it for 20 steps first)",
        ),
        (
            action("staleness_cap", kind="probe", before=1, after=2, gains=GAINS - 0.1),
            "Raise the staleness cap from 1 to 2 versions (throughput may fall: test it for 20 steps first)",
        ),
    ],
)
def test_an_action_is_an_imperative(made, words):
    assert actions.what_to_do(made) == words


@pytest.mark.parametrize(
    ("made", "run", "cell"),
    [
        (action(price=Price(aged(3))), model(1), "1 → 3 steps"),
        (action(price=Price(aged(1))), model(3), "3 → 1 step"),
        (action(price=Price(aged(3))), model(3), "3 → 3 steps"),
        (action(price=Price(aged(3))), model(2, 2.0), "4 → 6 steps"),
        # Publications that wait for the cap come every 4.6 steps. A change of a tenth is said, and nothing less.
        (
            action(price=Price(aged(1, 4.6))),
            model(1),
            "1 → 4.6 steps, because weights are then published every 4.6 steps, not every 1",
        ),
        (
            action(price=Price(aged(1, 3.6))),
            model(1, delayed=4.0),
            "4 → 3.6 steps, because weights are then published every 3.6 steps, not every 4",
        ),
        (action(price=Price(aged(1, 3.7))), model(1, delayed=4.0), "4 → 3.7 steps"),
        (action(price=Price(aged(15, horizon_steps=120))), model(2), "2 → 15 steps, growing"),
        (action(price=Price(aged(4, p95_interval_steps=(3, 6)))), model(2, 2.0), "4 → 8 (6 to 12) steps"),
        (action(price=Price(aged(4, p95_interval_steps=(4, 4)))), model(2), "2 → 4 steps"),
        # Publishing half as often doubles the cap in steps.
        (
            action("publish_every", before=1, after=2, price=Price(aged(3))),
            model(2, cap=4),
            "2 → 6 steps; the cap of 4 versions is then 8 steps",
        ),
        (action("publish_every", before=1, after=2, price=Price(aged(3))), model(2), "2 → 6 steps"),
        (fix("colocated", price=Price(aged(0))), model(2), "2 → 0 steps"),
        # No other fix changes staleness; what is unknown is left out.
        (fix("trainer_speed"), model(2), ""),
        (action(price=Price()), model(2), ""),
        (action(), model(None), ""),
    ],
)
def test_the_staleness_after_an_action_is_counted_in_optimizer_steps(made, run, cell):
    assert actions.effects(made, run)["sample staleness p95"] == cell


def test_a_forecast_that_grows_says_so():
    assert actions.age_words(aged(15, horizon_steps=120), 2.0) == "30 steps, growing"
    assert actions.age_words(None, 1.0) == "no data"


@pytest.mark.parametrize(
    ("made", "cell"),
    [
        (action(), "+20% (+10% to +30%)"),
        (
            action(grade="assumed"),
            "+20% (+10% to +30%); decode speed was not measured near this number of requests",
        ),
        (fix("trainer_speed"), "+20% (+10% to +30%) for 10% faster training"),
        (fix("weight_updates"), "+20% (+10% to +30%) if weight updates took no time"),
        (
            action(kind="cheaper", before=Layout(6, 8, 16), after=Layout(2, 8, 16)),
            "+20% (+10% to +30%), if the training state fits on 2 GPUs",
        ),
        (action(kind="cheaper", before=Layout(6, 8, 16), after=Layout(6, 4, 16)), "+20% (+10% to +30%)"),
    ],
)
def test_a_gain_comes_with_its_condition_and_its_evidence(made, cell):
    assert actions.effects(made, model())["predicted gain"] == cell


def test_a_row_has_the_setting_the_price_the_work_and_the_rate_to_expect():
    share, before = Estimate(0.11, 0.01, 0.19), Estimate(0.7, 0.7, 0.7)
    made = action(
        "in_flight_limit",
        before=128,
        after=64,
        kind="probe",
        price=Price(aged(1), share, None, Estimate(0.75, 0.6, 0.9)),
        price_before=Price(None, before, None, Estimate(0.22, 0.2, 0.3)),
    )
    analysis = full_analysis()
    rate = analysis.throughput.steady_tokens_per_s
    assert list(actions.action_row(made, analysis, model()).items()) == [
        (
            "what",
            "Lower the limit on samples in flight from 128 to 64 (max_in_flight_samples); the gain may be "
            "under 5%: test it for 20 steps first",
        ),
        ("predicted gain", "+20% (+10% to +30%)"),
        ("sample staleness p95", "2 → 1 step"),
        ("tokens dropped", "70% → 11% (1.0% to 19%)"),
        ("long responses kept (longest 10%)", "22% → 75%"),
        ("cost", "a restart"),
        ("predicted tokens/s", f"{1.2 * rate / 1000:.3g}k"),
        ("price of 1M trained tokens", ""),
    ]
    limited = action("running_limit", "samplers", after=Layout(4, 4, 24), in_flight_limit=1152)
    row = actions.action_row(limited, analysis, model())
    assert row["what"].endswith(" (max_running and max_in_flight_samples)") and row["cost"] == "a restart"
    assert actions.limit_setting_of(action(), analysis.run) is None


@pytest.mark.parametrize(
    ("made", "price"),
    [
        # 36 GPUs at 1,200 tokens/s take 30,000 GPU-seconds for a million tokens; 8 and 4 auxiliary ones, 10,000.
        (action("staleness_cap", before=1, after=2), "20.83 EUR"),
        (action(), "6.94 EUR"),
        (fix("trainer_speed"), ""),
    ],
)
def test_a_million_tokens_have_a_price_after_an_action_that_promises_a_rate(made, price):
    full = full_analysis()
    run = replace(full.run, total_gpus=36, auxiliary_gpus=4, gpu_hour_price=2.5, currency="EUR")
    analysis = replace(full, run=run, throughput=replace(full.throughput, steady_tokens_per_s=1_000.0))
    row = actions.action_row(made, analysis, model())
    assert row["price of 1M trained tokens"] == price
    unpriced = replace(analysis, run=replace(run, gpu_hour_price=None))
    assert actions.action_row(made, unpriced, model())["price of 1M trained tokens"] == ""


@pytest.mark.parametrize(
    ("made", "cost"),
    [
        (action(), "restart"),
        (action("running_limit", "samplers"), "engine_restart"),
        (action("queue_capacity_samples", before=1, after=2), "restart"),
        (fix("trainer_speed"), "engineering"),
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
    assert actions.setting_of(what, run) == setting


def test_actions_stand_in_groups_and_below_them_it_says_what_their_columns_mean_and_how_to_verify_one():
    analysis = replace(full_analysis(), model=model())
    (_, alone) = actions.actions_part([fix("trainer_speed")], analysis).blocks
    assert alone.text == (
        "Ranges in parentheses are 90% intervals. Each gain is for that change alone. To verify a gain, record 20 "
        "steps with the change and run `rlscope compare BEFORE AFTER`."
    )
    shown = [action(), fix("trainer_speed"), action("asynchronous", "lockstep"), action(is_staler=True)]
    (table, explained) = actions.actions_part(shown, analysis).blocks
    assert table.groups == [
        "Settings",
        "Engineering work",
        "Engineering work",
        "Settings that raise staleness p95 by more than 50%",
    ]
    assert "tokens dropped" not in table.columns
    assert "Sample staleness is in optimizer steps;" in explained.text
    assert actions.actions_part([], analysis) is None


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


BY_NAME = {rule.name: rule for rule in RULES}


def found(rule) -> Finding:
    return Finding(rule.name, "warning", 1.0, {}, None, None)


@pytest.mark.parametrize("rule", RULES, ids=list(BY_NAME))
def test_a_finding_about_the_balance_of_both_sides_points_to_the_first_action(rule):
    ranked = [action("running_limit", after=Layout(4, 4, 24)), action()]
    about_balance = {"starved_trainer", "capped_staleness", "overproduction", "underfilled_engines", "lockstep"}
    pointed = "First raise the limit on running requests per engine from 16 to 24; then look again."
    assert findings.remedy(found(rule), ranked) == (pointed if rule.name in about_balance else rule.remedy)
    assert findings.remedy(found(rule), ()) == findings.remedy(found(rule), (), "torch") == rule.remedy


@pytest.mark.parametrize(
    ("name", "framework", "settings"),
    [
        ("starved_trainer", "verl", "async_training.staleness_threshold (how far samplers run ahead)"),
        ("starved_trainer", "slime", "--rollout-num-gpus (sampler GPUs)"),
        ("starved_trainer", "nemo-rl", "grpo.async_grpo.max_trajectory_age_steps"),
        ("starved_trainer", "PipelineRL", "actor.llm_max_rollouts (requests per engine)"),
        ("weight_update_cost", "trl", ": weight_sync_steps (how often weights are published)."),
        (
            "checkpoint_cost",
            "verl",
            ": trainer.save_freq (how often it saves); trainer.test_freq (how often it evaluates).",
        ),
    ],
)
def test_a_remedy_names_the_settings_of_the_framework(name, framework, settings):
    told = findings.remedy(found(BY_NAME[name]), (), framework)
    assert told.startswith(f"{BY_NAME[name].remedy} In {framework.lower()}: ") and settings in told


def test_what_python_shows_of_a_recommendation_and_of_an_action_has_no_list_of_draws():
    made = changing_model()
    for each in (made.recommendation, made.ranking.actions[0]):
        assert "layout=" in repr(each) or "kind=" in repr(each)
        assert "array(" not in repr(each)
