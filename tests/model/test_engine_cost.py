"""What prompts cost for each pass and for each of their tokens, and that the run's own batches cost the same again."""

from dataclasses import replace

import numpy as np
import pytest

from rlscope.model.analytic.engine_time import passes_per_sample
from rlscope.model.decode.curves import RooflineCurve
from rlscope.model.engine_cost import PrefillCost, curve_seconds, engine_of, prefill_cost
from rlscope.model.lengths import LengthLaw
from rlscope.model.observed import Observed, PassCosts, PreemptionCounts
from tests.model.known_run import observed as known_run
from tests.model.known_run import pass_costs

CURVE = RooflineCurve(flat_s=0.008, per_request_s=2.5e-4, sharpness=1.0)
"""10 ms at 8 requests."""
EVAL = {("eval", None): 8.0}
MEAN_TOKENS = 16.0
PROMPT_TOKENS = 100.0


def passes(prompts: list[tuple[int, int, float]], *, decode_tokens: int = 0) -> PassCosts:
    """Passes over 8 requests: 1,000 that only decode, and prompts as (passes, tokens of each, seconds of each)."""
    count, tokens, seconds = (np.array([1000, *column], dtype=np.float64) for column in zip(*prompts, strict=True))
    tokens[0], pass_s = 0.0, np.append(0.010, seconds[1:])
    prefills = np.arange(count.size) > 0
    return pass_costs(
        np.full(count.size, 8),
        np.zeros(count.size),
        count.astype(np.int64),
        pass_s,
        prefills=prefills,
        decode_tokens=np.where(prefills, decode_tokens * count, 8 * count).astype(np.int64),
        prefill_tokens=(count * tokens).astype(np.int64),
    )


def run(costs: PassCosts, *, samples: int) -> Observed:
    """A stretch with such passes."""
    law = LengthLaw.from_samples(np.full(4, int(MEAN_TOKENS)), np.full(4, True))
    return replace(known_run(), passes=costs, lengths=law, prompt_tokens=PROMPT_TOKENS, began_samples=samples)


def cost_of(observed: Observed, host_s: float) -> PrefillCost:
    """What its prompts cost."""
    return prefill_cost(observed, CURVE, host_s, curve_seconds(observed.passes, CURVE))


def again_s(observed: Observed, found: tuple[float, float | None]) -> float:
    """Seconds that the same samples cost at the same batch."""
    pass_s, tokens_per_s = found
    by_tokens_s = PROMPT_TOKENS / tokens_per_s if tokens_per_s else 0.0
    return observed.began_samples * (by_tokens_s + pass_s * float(passes_per_sample(MEAN_TOKENS, 8.0)))


@pytest.mark.parametrize(
    ("prompts_s", "decode_tokens", "host_s", "seconds", "of_passes_s"),
    [
        # 5 ms and 1 ms for every 50 tokens: 300 passes over one prompt take 7 ms, 100 over two take 9 ms.
        ((0.007, 0.009), 0, 0.0, 300 * 0.007 + 100 * 0.009, 400 * 0.005),
        ((0.007, 0.009), 0, 0.002, 300 * 0.009 + 100 * 0.011, 400 * 0.007),
        ((0.012, 0.014), 8, 0.0, 300 * 0.002 + 100 * 0.004, 0.0),  # 10 ms are the decoding's
    ],
    ids=["a line through the passes", "the host is a part of a pass that only prefills", "beside decoding"],
)
def test_what_prompts_cost_is_split_between_their_passes_and_their_tokens(
    prompts_s: tuple[float, float], decode_tokens: int, host_s: float, seconds: float, of_passes_s: float
) -> None:
    one, two = prompts_s
    observed = run(passes([(300, 100, one), (100, 200, two)], decode_tokens=decode_tokens), samples=500)
    found = cost_of(observed, host_s)
    assert again_s(observed, found) == pytest.approx(seconds)
    by_pass_s = found.pass_s * float(passes_per_sample(MEAN_TOKENS, 8.0)) * 500
    assert by_pass_s == pytest.approx(of_passes_s, abs=1e-9)


@pytest.mark.parametrize(("tokens", "told"), [((80, 120), True), ((81, 120), False)])
def test_tokens_that_hardly_vary_leave_the_split_to_the_curve(tokens: tuple[int, int], told: bool) -> None:
    # Their deviation is 0.2 of the mean, or just below it. The line would put 5 ms of some 9 into the pass; the curve's
    # elasticity at 100 rows is 25 of 33, which leaves a quarter.
    seconds = tuple(0.005 + 4e-5 * count for count in tokens)
    observed = run(passes([(100, tokens[0], seconds[0]), (100, tokens[1], seconds[1])]), samples=200)
    found = cost_of(observed, 0.0)
    by_pass = found.pass_s * float(passes_per_sample(MEAN_TOKENS, 8.0)) / (sum(seconds) / 2)
    assert by_pass == pytest.approx(5 / 9 if told else 8 / 33.1, rel=0.01)


def test_an_update_that_voids_the_kv_takes_a_pass_of_every_engine_and_its_tokens_cost_what_prompts_do() -> None:
    # 400 passes of 5 ms, and 50,000 tokens that take 1 s together.
    observed = replace(run(passes([(300, 100, 0.007), (100, 200, 0.009)]), samples=500), kv_kept=False)
    found = cost_of(observed, 0.0)
    updates = int(observed.steps.published.sum()) * observed.engines
    assert updates > 0
    assert found.pass_s * (500 * float(passes_per_sample(MEAN_TOKENS, 8.0)) + updates) == pytest.approx(400 * 0.005)
    assert found.tokens_per_s == pytest.approx(50_000 / 1.0)


@pytest.mark.parametrize(("made", "counted"), [(1.0, 1.0), (1.049, 1.0), (1.05, 1.05), (2.5, 2.5)])
def test_a_pass_that_makes_several_tokens_per_request_is_shared_by_them(made: float, counted: float) -> None:
    costs = passes([(300, 100, 0.007)])
    drafted = replace(costs, decode_tokens=np.rint(made * costs.decode_tokens).astype(np.int64))
    once, several = (engine_of(run(each, samples=300), CURVE).curve for each in (costs, drafted))
    assert several.decode_s(8.0, 0.0) == pytest.approx(once.decode_s(8.0, 0.0) / counted)


def test_work_besides_passes_is_a_cost_of_a_token_however_many_a_pass_makes() -> None:
    costs = passes([(300, 100, 0.007)])
    evaluated = replace(run(replace(costs, decode_tokens=2 * costs.decode_tokens), samples=300), engine_state_s=EVAL)
    assert engine_of(evaluated, CURVE).curve.other_s_per_request == pytest.approx(8.0 / (2 * 8 * 1000))


def test_no_pass_over_prompts_costs_nothing() -> None:
    costs = passes([(1, 1, 0.0)])
    alone = PassCosts(*(getattr(costs, name)[:1] for name in PassCosts.__slots__))
    assert cost_of(run(alone, samples=10), 0.0) == (0.0, None)


@pytest.mark.parametrize(
    ("mean_tokens", "running", "expected"),
    [(1000.0, 1.0, 1.0), (1.0, 8.0, 1 / 8), (2.0, 2.0, 0.75), (1000.0, 0.5, 1.0), (1000.0, 1e6, 1e-3)],
)
def test_prompts_share_a_pass_the_more_the_more_requests_end_in_one(
    mean_tokens: float, running: float, expected: float
) -> None:
    assert float(passes_per_sample(mean_tokens, running)) == pytest.approx(expected)


def test_what_preemptions_had_computed_again_makes_no_prompt_dearer() -> None:
    # 500 prompts in 400 passes; and the same passes over as many requests put back, with as many tokens.
    alone = run(passes([(300, 100, 0.007), (100, 200, 0.009)]), samples=500)
    both = run(passes([(600, 100, 0.007), (200, 200, 0.009)]), samples=500)
    counted = replace(both, preemption_counts=PreemptionCounts(preemptions=500, recomputed_tokens=50_000))
    assert cost_of(counted, 0.0) == pytest.approx(cost_of(alone, 0.0))
    assert cost_of(replace(alone, preemption_counts=PreemptionCounts(0, 0)), 0.0) == cost_of(alone, 0.0)
    untold = cost_of(replace(alone, preemption_counts=PreemptionCounts(500, None)), 0.0)
    assert untold.tokens_per_s == cost_of(alone, 0.0).tokens_per_s
    # With nobody to count, each prompt is taken to cost twice as much.
    uncounted = cost_of(both, 0.0)
    assert uncounted.tokens_per_s == pytest.approx((cost_of(alone, 0.0).tokens_per_s or 0.0) / 2)
