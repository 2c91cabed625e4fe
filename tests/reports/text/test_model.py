import re
import typing
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from rlscope import format as fmt
from rlscope.analysis.result import Verdict
from rlscope.model.causes import Bottleneck, Cause
from rlscope.model.decode.curves import Form
from rlscope.model.decode.measurements import Grade
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.gap import Gap, GapCause, GapStep
from rlscope.model.forecast.layouts import Exclusion
from rlscope.model.forecast.price import Price
from rlscope.model.forecast.recommend import GainUncertainty, Reason, UncertaintySource
from rlscope.model.forecast.replay import UNITS, Observable
from rlscope.model.forecast.result import ModelResult
from rlscope.model.warnings import ModelWarning
from rlscope.reports.text import advice, names
from rlscope.reports.text import model as model_words
from rlscope.reports.text import verdict as verdict_words
from rlscope.reports.text.actions import effects as effects_of
from rlscope.reports.text.causes import NAMES
from tests.reports.analysis_fixture import full_analysis
from tests.reports.model_fixture import changing_model, short_model

REASONS = typing.get_args(Reason)
DOUBTS = typing.get_args(UncertaintySource)


def words_of(literal):
    """The members of a literal, of unions of literals too."""
    parts = typing.get_args(literal)
    return {word for part in parts for word in (words_of(part) if typing.get_args(part) else {part})}


def with_reason(reason, made=None, **changes):
    made = made or replace(changing_model(), warnings=())
    return replace(made, recommendation=replace(made.recommendation, reason=reason, **changes))


def analyzed(made, bottleneck="samplers"):
    return replace(full_analysis(), model=made, verdict=Verdict(bottleneck, (), None, 0, 10**10))


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (words_of(Reason), names.REASONS),
        (words_of(GapCause), names.MEANINGS),
        (words_of(Exclusion), names.EXCLUSIONS),
        (words_of(Grade), names.EVIDENCE),
        (words_of(Form), names.FORMS),
        (set(Cause) - {Cause.UNKNOWN}, NAMES),
        (set(ModelWarning), names.WARNINGS),
    ],
    ids=["reasons", "gap", "exclusions", "grades", "forms", "causes", "warnings"],
)
def test_every_word_of_the_model_has_a_text_of_its_own_and_no_others_do(words, texts):
    assert set(texts) == words
    assert len({str(text).strip() for text in texts.values()} - {""}) == len(words)


@pytest.mark.parametrize("reason", REASONS)
def test_every_advice_has_a_headline_a_reason_and_a_next_step_for_every_verdict(reason):
    made = with_reason(reason)
    headline, why = advice.headline(made), advice.why(made)
    steps = [verdict_words.next_step(analyzed(made, each)) for each in typing.get_args(Bottleneck) if each != "unknown"]
    for text in (headline, why, *steps):
        assert text and "{" not in text and "None" not in text and "no data" not in text
    assert why.endswith(".") and not headline.endswith(".")


@pytest.mark.parametrize("reason", ["best_already", "small_gain", "no_other_layout", "not_replayed"])
def test_a_layout_that_is_kept_comes_without_gains_odds_or_other_layouts(reason):
    made, kept = (
        with_reason(reason),
        "Keep 2 trainer GPUs and 6 sampler GPUs, with up to 32 running requests per engine",
    )
    headline = "No layout is recommended" if reason == "not_replayed" else kept
    assert (advice.headline(made), advice.why(made)) == (headline, names.REASONS[reason])
    shown, _ = advice.layouts_part(made).blocks
    assert shown.text == headline and advice.chosen_layouts(made) == [made.forecasts.today]


def test_a_layout_is_not_kept_as_the_fastest_where_a_staler_one_is_faster():
    made = changing_model()
    kept = with_reason("small_gain", staler=made.recommendation.best)
    assert advice.why(kept) == (
        "Every layout that is likely to gain 5% raises sample staleness p95 by more than 50%, to above 4 steps."
    )


@pytest.mark.parametrize(("cap", "says_so"), [(8, False), (7, True)])
def test_a_layout_that_exceeds_the_cap_is_not_kept_without_saying_so(cap, says_so):
    """The p95 staleness is 8 versions."""
    made = with_reason("best_already", gain_ratio=Estimate(-0.5, -0.6, -0.4))
    made = replace(
        made, ranking=replace(made.ranking, actions=()), model_config=replace(made.model_config, most_staleness=cap)
    )
    said = advice.headline(made), advice.why(made)
    assert (said[0] == f"The current layout exceeds the staleness cap of {cap} (p95: 8 versions)") == says_so
    assert ("The fastest layout within it is 4 trainer GPUs and 4 sampler GPUs" in said[1]) == says_so
    assert ("`rlscope what-if RUN --max-staleness 7`" in said[1]) == says_so
    assert (said[0] in verdict_words.next_step(analyzed(made, "balanced"))) == says_so


@pytest.mark.parametrize(
    ("reason", "verb"), [("worthwhile", "Use"), ("unsure", "Test"), ("lengths_drift", "Test"), ("too_short", "Test")]
)
def test_a_layout_to_change_to_or_to_try_comes_with_its_gain_and_odds_beside_others(reason, verb):
    made = with_reason(reason)
    headline = advice.headline(made)
    assert headline.startswith(f"{verb} 4 trainer GPUs and 4 sampler GPUs, with up to ")
    assert headline.endswith(f": throughput {advice.gain_words(made.recommendation.gain_ratio)}")
    assert "It is more than 99% likely to gain at least 5%" in advice.why(made)
    table, _ = advice.layouts_part(made).blocks
    assert table.rows[0][:2] == ("2 : 6, current", "32") and table.rows[0][3] == ""
    assert len(table.rows) == 5 and all(row[3] for row in table.rows[1:])


@pytest.mark.parametrize(
    ("of_fastest", "words"),
    [
        (1.0, ""),
        (0.985, "Among layouts within 2% of each other, measured decode speed decides, then fewer drops,"),
        (0.97, "Faster layouts are staler,"),
    ],
)
def test_a_recommended_layout_that_is_not_the_fastest_says_why(of_fastest, words):
    made = changing_model()
    fastest = max(made.forecasts.rivals, key=lambda each: each.tokens_per_s)
    best = replace(
        fastest,
        tokens_per_s=of_fastest * fastest.tokens_per_s,
        drawn_tokens_per_s=of_fastest * fastest.drawn_tokens_per_s,
    )
    said = advice.why(replace(made, recommendation=replace(made.recommendation, best=best)))
    reasons = [each for each in ("Among layouts within", "Faster layouts") if each in said]
    assert words in said and len(reasons) == bool(words)


@pytest.mark.parametrize(("dropped", "words"), [(50, "publish less often"), (49, "what each side waits for")])
@pytest.mark.parametrize("sides", [("samplers", "trainers"), ("trainers", "samplers")])
def test_where_both_sides_lose_as_much_and_no_model_says_why_no_gpu_is_moved(sides, dropped, words):
    full = full_analysis()
    outcomes = pl.DataFrame({"outcome": ["trained", "dropped_stale"], "tokens": [1000 - dropped, dropped]})
    analysis = replace(
        full,
        verdict=replace(full.verdict, bottleneck=sides[0], tied_with=sides[1:]),
        answers={**full.answers, "judged_outcomes": outcomes},
    )
    step = verdict_words.next_step(analysis)
    assert step.startswith("Move no GPUs yet") and words in step.lower()


def test_the_next_step_is_the_first_action_of_the_ranking_with_its_gain():
    made = changing_model()
    first = made.ranking.actions[0]
    assert (first.kind, first.what, first.after) == ("change", "layout", made.recommendation.best.layout)
    words = advice.layout_words(first.after, made.forecasts.today.layout)
    effects = [f"{name[0].upper()}{name[1:]}: {cell}." for name, cell in effects_of(first, made).items() if cell]
    assert len(effects) >= 2
    assert verdict_words.next_step(analyzed(made, "trainers")) == " ".join([f"Use {words}.", *effects])


@pytest.mark.parametrize(
    ("kind", "dropped_ratio", "aside"),
    [
        ("change", 0.3, "This addresses the trainers, not the bottleneck"),
        ("cheaper", 0.3, "This frees GPUs, but does not remove the bottleneck"),
        ("fresher", 0.1, "This drops fewer tokens, but does not remove the bottleneck"),
        ("fresher", 0.3, "This makes samples fresher, but does not remove the bottleneck"),
    ],
)
def test_a_first_action_against_another_cause_says_what_it_is_good_for(kind, dropped_ratio, aside):
    made = changing_model()
    before, after = (Price(dropped_ratio=Estimate.exactly(each)) for each in (0.3, dropped_ratio))
    first = replace(made.ranking.actions[0], kind=kind, price_before=before, price=after)
    for others, other in ((), ""), ((first, replace(first, cause="weight_updates")), ": for that, see action 3"):
        listed = replace(made, ranking=replace(made.ranking, actions=(first, *others)))
        assert verdict_words.next_step(analyzed(listed, "weight_updates")).endswith(f" {aside}{other}.")


@pytest.mark.parametrize(
    ("bottleneck", "words"),
    [("trainers", "No setting is likely to gain 5%, and"), ("balanced", "No change is predicted to")],
)
def test_where_no_action_brings_five_per_cent_the_layout_is_kept_and_nothing_follows(bottleneck, words):
    made = changing_model()
    analysis = analyzed(replace(made, ranking=replace(made.ranking, actions=())), bottleneck)
    assert verdict_words.next_step(analysis).startswith(f"Keep the current layout. {words}")
    assert verdict_words.actions_of(analysis) == ()


@pytest.mark.parametrize(
    ("reason", "doubt", "spread", "words"),
    [
        *(("unsure", doubt, 0.1, r"Largest uncertainty: .+\. To reduce it, (run|record) .+\.") for doubt in DOUBTS),
        ("unsure", "trainer_scaling", 0.1, r"record 15 steps with another number of trainer GPUs and pass that run"),
        ("unsure", "trainer_scaling", 0.0, None),
        # A stretch that is too short needs steps before anything else.
        ("too_short", "trainer_scaling", 0.1, None),
    ],
)
def test_the_largest_uncertainty_comes_with_what_to_measure(reason, doubt, spread, words):
    why = advice.why(with_reason(reason, uncertainties=(GainUncertainty(doubt, spread),)))
    assert re.search(words, why) if words else "Largest uncertainty" not in why
    assert ("that takes 20 steps" in why) == (reason == "too_short")


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (Estimate(0.1, 0.1, 0.1), "+10%"),
        (Estimate(0.1, 0.0999, 0.1011), "+10%"),
        (Estimate(0.0995, 0.0994, 0.11), "+10% (90% interval +9.9% to +11%)"),
        (Estimate(0.1, -0.028, 1.15), "+10% (90% interval −2.8% to +115%)"),
    ],
)
def test_an_interval_whose_ends_read_the_same_is_not_shown(gain, text):
    assert advice.gain_words(gain) == text


def test_small_causes_share_a_row_and_a_gain_is_told_from_a_loss():
    steps = (GapStep("layout_imbalance", 300.0, 700.0), GapStep("kv_cache", 1.9, 698.1),
             GapStep("in_flight_limit", 0.0, 698.1), GapStep("weight_updates", 2.0, 696.1),
             GapStep("unexplained", -50.0, 746.1))  # fmt: skip
    made = replace(changing_model(), gap=Gap(1000.0, steps, 746.1))
    bars = model_words.loss_bars(made, has_meanings=True).bars
    assert [(bar.name, bar.value, round(bar.from_ratio, 6), round(bar.to_ratio, 6)) for bar in bars] == [
        ("upper bound, predicted", "1k tokens/s", 0.0, 1.0),
        ("split of the GPUs", "−300 tokens/s", 0.7, 1.0),
        ("weight updates", "−2 tokens/s", 0.698, 0.7),
        ("all other causes", "−1.9 tokens/s", 0.6961, 0.698),
        ("not explained", "+50 tokens/s", 0.6961, 0.7461),
        ("measured, steady state", "746 tokens/s", 0.0, 0.7461),
    ]
    assert bars[-2].note == names.BETTER_THAN_MODEL


def test_the_rows_of_current_and_recommended_agree_with_the_recommendation():
    made = changing_model()
    today, *others = advice.chosen_layouts(made)
    assert advice.mark_of(made, today) == "current"
    assert [each for each in others if advice.mark_of(made, each)] == [best := made.recommendation.best]
    assert advice.mark_of(made, best) == "recommended"
    assert advice.gain_of(made, today) is None and advice.gain_of(made, best) == made.recommendation.gain_ratio
    tried = with_reason("too_short")
    assert {advice.mark_of(tried, each) for each in advice.chosen_layouts(tried)} >= {"current", "to try"}


def test_a_layout_that_was_not_drawn_has_a_gain_without_an_interval():
    made = changing_model()
    undrawn = next(each for each in made.forecasts.others if each.tokens_per_s and each.drawn_tokens_per_s is None)
    gain = advice.gain_of(made, undrawn)
    assert gain.value == gain.low == gain.high == undrawn.tokens_per_s / made.forecasts.today.tokens_per_s - 1.0


def test_a_change_of_a_synchronous_run_includes_running_asynchronously():
    made = changing_model()
    turns = replace(made, calibration=replace(made.calibration, synchronous=True))
    assert advice.headline(turns).startswith("Run asynchronously on 4 trainer GPUs and 4 sampler GPUs")
    assert advice.headline(with_reason("unsure", turns)).startswith("Test running asynchronously on 4 trainer GPUs")
    assert any(line.startswith("This run is synchronous.") for line in model_words.remarks(turns))
    assert not any(line.startswith("This run is synchronous.") for line in model_words.remarks(made))


def test_time_to_finish_comes_with_its_price():
    finish = changing_model().finish
    part, _ = model_words.outlook_parts(changing_model())
    table, note = part.blocks
    assert [row[0] for row in table.rows] == ["current layout", "recommended layout"]
    assert table.rows[0][-1] == fmt.significant(finish.current.hours.value * 8 * 2.5)
    assert "400 steps left on 8 GPUs" in note.text
    free = {name: replace(getattr(finish, name), price=None) for name in ("current", "best")}
    unpriced = replace(changing_model(), finish=replace(finish, gpu_hour_price=None, **free))
    table, _ = next(model_words.outlook_parts(unpriced)).blocks
    assert "price" not in table.columns and {len(row) for row in table.rows} == {3}


def test_a_short_run_without_a_known_number_of_steps_has_warnings_and_no_time_to_finish():
    (remarks,) = model_words.outlook_parts(short_model())
    assert remarks.title == "Warnings and assumptions"
    assert names.WARNINGS[ModelWarning.SHORT_STRETCH] in remarks.blocks[0].lines


def test_the_synchronous_baseline_is_said_of_an_asynchronous_run_that_the_model_reproduces():
    made = changing_model()
    said = f"A synchronous run on all GPUs would train {fmt.tokens_per_second(made.synchronous_tokens_per_s)}."
    in_turns = replace(made, calibration=replace(made.calibration, synchronous=True))
    assert said in model_words.gap_sentences(made)
    for silent in (in_turns, replayed(tokens_per_s=(1_000.0, 800.0))):
        assert "synchronous" not in " ".join(model_words.gap_sentences(silent))


def test_the_time_lost_to_small_batches_is_said_if_it_is_known():
    known, unknown = (
        model_words.gap_sentences(replace(changing_model(), **each)) for each in ({}, {"efficiency": None})
    )
    assert "% of the decoding time in steady state." in " ".join(known) and "decod" not in " ".join(unknown)


def test_the_rate_beside_a_gain_is_the_current_rate_times_that_gain():
    made = changing_model()
    drawn = np.array([100.0, 200.0, 400.0])
    today = replace(made.forecasts.today, tokens_per_s=210.0, drawn_tokens_per_s=drawn)
    other = replace(made.recommendation.best, drawn_tokens_per_s=np.array([110.0, 190.0, 440.0]))
    assert advice.rate_of(today).value == 200.0
    assert advice.rate_of(other).value == 190.0
    # Draw by draw: +10%, -5%, +10%; on the measured 210, not on the median of the draws.
    assert advice.rate_of(other, today).value == pytest.approx(231.0)
    assert advice.rate_of(today, today).value == 210.0
    assert advice.rate_of(other, replace(today, tokens_per_s=None)) == advice.rate_of(other)


def test_the_rows_of_the_layouts_are_sorted_by_gain():
    made = changing_model()
    best, drawn = made.recommendation.best, made.forecasts.today.drawn_tokens_per_s
    others = [replace(best, drawn_tokens_per_s=drawn * ratio) for ratio in (0.9, 0.95, 1.0, 1.05, 1.1)]
    ranked = replace(made, forecasts=replace(made.forecasts, others=(best, *others)))
    chosen = advice.chosen_layouts(ranked)
    assert [advice.gain_text(advice.gain_of(ranked, each)) for each in chosen[2:]] == ["+10%", "+5.0%", "0%"]


def replayed(**values: tuple[float | None, float | None]) -> ModelResult:
    """The made run with a replay of these (measured, replayed) alone."""
    model = changing_model()
    compared = tuple(Observable(name, *values.get(name, (None, None))) for name in UNITS)
    return replace(model, replay=replace(model.replay, compared=compared, method="simulation"))


def test_each_quantity_is_shown_measured_and_replayed_and_what_was_not_recorded_says_so() -> None:
    model = replayed(
        tokens_per_s=(1_000.0, 950.0),
        wait_samples_ratio=(0.25, 0.30),
        staleness_mean=(2.0, 1.5),
        queued_samples=(None, 8),
    )
    table, _ = model_words.replay_part(model).blocks
    rows = {name: tuple(values) for name, *values in table.rows}
    assert rows["training throughput"] == ("1k tokens/s", "950 tokens/s", "−5.0%")
    assert rows["trainers waiting for samples"] == ("25.0%", "30.0%", "+5.0 points")
    assert rows["mean token staleness"] == ("2 versions", "1.5 versions", "−0.5 versions")
    assert rows["queue depth"] == ("not recorded", "8 samples", "")
    assert rows["step time"] == ("not recorded", "not predicted", "")
    assert len(rows) == 12


def test_a_replay_that_misses_the_rate_says_by_how_much_and_what_is_off() -> None:
    sentence = model_words.replay_sentence(replayed(tokens_per_s=(1_000.0, 800.0), wait_samples_ratio=(0.2, 0.4)))
    assert "The replay does not match this run: the replayed rate is −20.0% from the measured one" in sentence
    assert sentence.endswith("Off beyond its tolerance: trainers waiting for samples; training throughput.")
    assert model_words.replay_sentence(replayed(tokens_per_s=(1_000.0, 950.0))).endswith(
        "Every quantity is within its tolerance."
    )
