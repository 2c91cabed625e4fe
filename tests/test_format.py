import math

import pytest

from rlscope import format as fmt


@pytest.mark.parametrize("write", [fmt.significant, fmt.count, fmt.si, fmt.percent, fmt.tokens,
                                   fmt.tokens_per_second, fmt.versions, fmt.gpu_time, fmt.duration,
                                   fmt.size])  # fmt: skip
def test_what_is_no_number_is_said_to_be_no_data(write):
    assert [write(value) for value in (None, math.nan, math.inf, -math.inf)] == ["no data"] * 4


def rows(write, *pairs):
    return [(write, *pair) for pair in pairs]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        # A plain number keeps three significant digits.
        *rows(fmt.significant, (0, "0"), (0.00123, "0.00123"), (1.5, "1.5"), (12.34, "12.3"), (1234.5, "1,234")),
        *rows(fmt.significant, (-2.5, "−2.5"), (100, "100"), (1e-6, "0.000001"), (9.99e-7, "9.99e-07")),
        (fmt.significant, -2.58e-14, "−2.58e-14"),
        # A large number gets the prefix that it rounds to.
        *rows(fmt.si, (0, "0"), (950, "950"), (999.4, "999"), (999.6, "1k"), (12_345, "12.3k"), (999_600, "1M")),
        (fmt.si, 1.5e9, "1.5G"),
        # A ratio is per cent, and nothing above zero reads as zero.
        *rows(fmt.percent, (0, "0%"), (0.0004, "<0.1%"), (0.0005, "0.1%"), (0.623, "62.3%"), (0.9994, "99.9%")),
        *rows(fmt.percent, (1.0, "100%"), (1.5, "150%")),
        # What is below zero keeps its sign, unless it rounds to zero.
        *rows(fmt.percent, (-0.0, "0%"), (-1e-17, "0%"), (-0.0004, "0%"), (-0.0005, "−0.1%"), (-0.028, "−2.8%")),
        (fmt.percent, -1.5, "−150%"),
        # A modeled gain is no finer than a model.
        *rows(fmt.gain, (0.0, "0%"), (0.0004, "about 0%"), (-0.028, "−2.8%"), (0.0994, "+9.9%"), (0.0995, "+10%")),
        *rows(fmt.gain, (0.684, "+68%"), (-0.5, "−50%"), (1.654, "+165%"), (None, fmt.NO_DATA)),
        # A change has its sign.
        *rows(fmt.signed_percent, (0.1, "+10.0%"), (-0.028, "−2.8%"), (0, "0%"), (0.0004, "about 0%")),
        *rows(fmt.signed_percent, (-0.0004, "about 0%"), (0.0005, "+0.1%"), (0.9994, "+99.9%"), (0.9996, "+100%")),
        *rows(fmt.signed_percent, (12.5, "+1,250%"), (None, "no data"), (math.nan, "no data")),
        # Points are the difference of two shares.
        *rows(fmt.signed_points, (0.014, "+1.4 points"), (-0.2, "−20.0 points"), (-0.0004, "about 0 points")),
        *rows(fmt.signed_points, (0.0, "0 points"), (None, "no data")),
        # A difference has the sign and the unit of its quantity.
        *rows(fmt.signed(fmt.duration), (1.4, "+1.4 s"), (-0.2, "−200 ms")),
        *rows(fmt.signed(fmt.significant), (0.0, "0"), (None, "no data")),
        (fmt.signed(fmt.percent), -0.2, "−20.0 points"),
        # A duration is in the units that matter.
        *rows(fmt.duration, (0, "0 s"), (5e-7, "0.5 µs"), (0.00085, "850 µs"), (0.0123, "12.3 ms"), (4.561, "4.56 s")),
        *rows(fmt.duration, (59.96, "1 min"), (200, "3 min 20 s"), (3599.6, "1 h"), (7500, "2 h 5 min")),
        *rows(fmt.duration, (90_000, "1 d 1 h"), (-0.5, "−500 ms"), (1e-7, "0.1 µs"), (9.9e-8, "<0.1 µs")),
        *rows(fmt.duration, (-1.75e-8, "0 s"), (0.99949, "999 ms"), (0.9995, "1 s"), (0.00099949, "999 µs")),
        *rows(fmt.duration, (0.00099951, "1 ms"), (1.0, "1 s")),
        # GPU time is in hours from one hour on.
        *rows(fmt.gpu_time, (0, "0 GPU-s"), (3599, "3,599 GPU-s"), (3600, "1 GPU-h"), (9e6, "2,500 GPU-h")),
        *rows(fmt.gpu_time, (0.001, "0.001 GPU-s"), (1.46e-9, "<0.001 GPU-s")),
        # Only one of a thing is singular.
        *rows(fmt.versions, (1, "1 version"), (0.9996, "1.0 versions"), (1.004, "1.0 versions")),
        *rows(fmt.versions, (0.997, "0.997 versions"), (0, "0 versions")),
    ],
)
def test_a_value_is_written_for_a_reader(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("waiting_gpu_s", 12.0, "12 GPU-s"), ("share_ratio", 0.5, "50.0%"), ("tokens_per_s", 1500.0, "1.5k tokens/s"),
     ("dropped_tokens", 1, "1 token"), ("max_staleness_versions", 4, "4 versions"), ("tail_s", 0.5, "500 ms"),
     ("steps", 1, "1 step"), ("steps", 2, "2 steps"), ("samples_per_s", 3.0, "3/s"), ("running_cap", 64, "64"),
     ("worker_id", "sampler-0", "sampler-0"), ("anything", None, "no data"), ("kv_bytes", 2.5e9, "2.5 GB")],
)  # fmt: skip
def test_a_quantity_is_written_by_the_unit_in_its_name(name, value, text):
    assert fmt.quantity(name, value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(989e12, "989 TFLOP/s"), (999.6e9, "1 TFLOP/s"), (950, "950 FLOP/s"), (None, "no data")]
)
def test_a_prefix_stands_before_its_unit_and_after_a_space(value, text):
    assert fmt.in_unit(value, "FLOP/s") == text


@pytest.mark.parametrize(
    ("write", "values", "text"),
    [
        (fmt.tokens_per_second, (6590, 6230, 6830), "6.59k (6.23k to 6.83k) tokens/s"),
        (fmt.duration, (0.193, 0.186, 0.204), "193 (186 to 204) ms"),
        (fmt.duration, (0.9, 0.8, 1.1), "900 ms (800 ms to 1.1 s)"),
        (fmt.duration, (100, 90, 110), "1 min 40 s (1 min 30 s to 1 min 50 s)"),
        (fmt.percent, (0.044, 0.014, 0.067), "4.4% (1.4% to 6.7%)"),
        (fmt.percent, (0.001, 0.001, 0.00101), "0.1%"),
    ],
)
def test_an_interval_says_its_unit_once(write, values, text):
    assert fmt.with_interval(write, *values) == text
