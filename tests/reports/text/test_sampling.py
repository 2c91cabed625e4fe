"""What samplers spend their time on, and what would make sampling faster."""

from dataclasses import replace

import polars as pl
import pytest

from rlscope.analysis.result import AnalysisResult, Finding
from rlscope.reports.text.sampling import sampling_words
from tests.reports.analysis_fixture import empty_analysis, full_analysis

DECODING = "At this batch size, quantization, speculative decoding or tensor parallelism speeds up decoding."


def run(*rules: str, **gpu_s: float) -> AnalysisResult:
    """A run whose samplers spent GPU-seconds in these states, with these findings."""
    analysis = full_analysis()
    starts_ns = [analysis.verdict.start_ns, analysis.verdict.start_ns + 10**9]
    rows = [
        {"bucket_start_ns": start_ns, "role": role, "state": state, "reason": None, "gpu_s": seconds / 2.0}
        for start_ns in starts_ns
        for role, state, seconds in (*(("sampler", *each) for each in gpu_s.items()), ("trainer", "train", 50.0))
    ]
    timeline = pl.DataFrame(rows, schema_overrides={"reason": pl.String})
    engines = pl.DataFrame({"running_mean": [8.0, 20.0], "row_s": [3.0, 1.0], "max_running": [32, 32]})
    return replace(
        analysis,
        findings=tuple(Finding(rule, "warning", None, {}, None, None) for rule in rules),
        answers={"ledger_timeline": timeline, "engine_speed": engines, "pass_latency": passes_of(1.0)},
    )


def passes_of(tokens: float) -> pl.DataFrame:
    """1,000 passes over 8 requests that make so many tokens for each."""
    return pl.DataFrame({"running": [8], "passes": [1_000], "decode_tokens": [round(8_000 * tokens)]})


@pytest.mark.parametrize(("tokens", "already"), [(1.0, False), (1.049, False), (1.05, True), (3.0, True)])
def test_speculative_decoding_is_no_remedy_where_it_is_already_used(tokens: float, already: bool) -> None:
    analysis = run(decoding=100.0)
    said = sampling_words(replace(analysis, answers={**analysis.answers, "pass_latency": passes_of(tokens)}))
    assert ("speculative decoding" not in said) == already


def test_the_shares_of_the_samplers_time_are_named_down_to_5_percent() -> None:
    """94 of 100 GPU-s are decoding; engines that run 8 and 20 requests for 3 s and 1 s have a mean batch of 11."""
    said = sampling_words(run(prefilling=5.0, decoding=94.0, between_passes=1.0))
    assert said == f"Sampler time: 94.0% decoding (mean batch 11, limit 32) and 5.0% prefilling. {DECODING}"


@pytest.mark.parametrize(
    ("rules", "gpu_s", "remedy"),
    [
        ((), {"decoding": 80.1, "prefilling": 19.9}, DECODING),
        ((), {"decoding": 80.0, "prefilling": 20.0}, "Check that prefix caching"),
        ((), {"decoding": 90.1, "between_passes": 9.9}, DECODING),
        ((), {"decoding": 90.0, "between_passes": 10.0}, "Asynchronous scheduling"),
        (("underfilled_engines",), {"decoding": 80.0, "prefilling": 20.0}, "More requests per engine"),
        (("underfilled_engines", "full_kv_cache"), {"decoding": 100.0}, "The KV cache limits the batch"),
    ],
)
def test_what_stands_out_has_its_own_remedy(rules: tuple[str, ...], gpu_s: dict[str, float], remedy: str) -> None:
    assert sampling_words(run(*rules, **gpu_s)).split(". ", 1)[1].startswith(remedy)


def test_engines_of_unknown_limit_have_no_batch_and_samplers_without_forward_passes_no_words() -> None:
    analysis = run(decoding=100.0)
    unlimited = analysis.answers["engine_speed"].with_columns(max_running=pl.lit(None, pl.Int32))
    said = sampling_words(replace(analysis, answers={**analysis.answers, "engine_speed": unlimited}))
    assert said == f"Sampler time: 100% decoding. {DECODING}"
    assert sampling_words(run(generating=100.0)) == ""
    assert sampling_words(empty_analysis()) == ""
