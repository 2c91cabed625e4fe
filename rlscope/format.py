"""Formats numbers with units for people. Missing data is written as "no data", never as 0.

Also formats text for a terminal: strings from a run without markup and control characters, and bulleted lines.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from rlscope import text_out

NO_DATA: Final = "no data"
Write = Callable[[float | None], str]
"""A formatter of this module."""

_SI_STEPS: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SECONDS_PER_HOUR: Final = 3600.0
_SMALLEST_WRITTEN_OUT: Final = 1e-6
_REPR_CHARACTERS: Final = 160
_LEAST_GPU_S: Final = 0.001
_LEAST_S: Final = 1e-7
"""Shorter durations are noise: they are sums and differences of clock readings in whole nanoseconds."""
_NOUNS: Final = {
    "updates": "weight update",
    "steps": "step",
    "skipped_files": "file",
    "dropped_rows": "row",
    "missing_rows": "row",
    "workers_without_end": "worker",
}


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def significant(value: float | None, digits: int = 3) -> str:
    """Format a number with at least `digits` significant digits and thousands separators: −2.58e-14, 0.00123, 1,234."""
    if finite(value) is None or value is None:
        return NO_DATA
    if value <= 0:
        return f"−{significant(-value, digits)}" if value else "0"
    if value < _SMALLEST_WRITTEN_OUT:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(value)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float | None) -> str:
    """Format a count with thousands separators: 1,234."""
    return NO_DATA if finite(value) is None or value is None else f"{value:,.0f}"


def counted(value: float | None, noun: str, plural: str = "") -> str:
    """Format a count with its noun: 1 step, 2 steps. plural: of a noun that does not end with "s" in the plural."""
    return NO_DATA if finite(value) is None else f"{count(value)} {noun if value == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str]) -> str:
    """Join names for a sentence: a, b and c."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def some(names: Sequence[str], most: int) -> str:
    """Join the first names, and say how many more there are: a, b and 3 more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {count(more)} more" if more > 0 else "")


def si(value: float | None) -> str:
    """Format a large number with an SI prefix: 950, 12.3k, 4.56M."""
    if finite(value) is None or value is None:
        return NO_DATA
    text, prefix = _scaled(value)
    return text + prefix


def in_unit(value: float | None, unit: str) -> str:
    """Format a large number with the SI prefix on its unit: 989 TFLOP/s, 80 GB, 950 B."""
    if finite(value) is None or value is None:
        return NO_DATA
    text, prefix = _scaled(value)
    return f"{text} {prefix}{unit}"


def percent(ratio: float | None) -> str:
    """Format a ratio (0..1) as a percentage: 62.3%; a ratio above 0 that rounds to 0 is <0.1%.

    A negative ratio is a difference, −2.8%; if it rounds to 0 it is a rounding error and becomes 0%.
    """
    if finite(ratio) is None or ratio is None:
        return NO_DATA
    if 0 < ratio < 0.0005:
        return "<0.1%"
    if -0.0005 < ratio <= 0:
        return "0%"
    return (f"{ratio:.1%}" if abs(ratio) < 0.9995 else f"{ratio:.0%}").replace("-", "−")


def signed_percent(ratio: float | None) -> str:
    """Format a signed change as a percentage: +10.0%, −2.8%, +115%; a change that rounds to 0 is "about 0%"."""
    if finite(ratio) is None or ratio is None:
        return NO_DATA
    if ratio and abs(ratio) < 0.0005:
        return "about 0%"
    text = f"{ratio:+.1%}" if abs(ratio) < 0.9995 else f"{ratio:+,.0%}"
    return text.replace("-", "−") if ratio else "0%"


def gain(ratio: float | None) -> str:
    """Format a modeled gain as a percentage, with no more digits than models support: +68%, −2.8%, about 0%."""
    if finite(ratio) is None or ratio is None or abs(ratio) < 0.0995:
        return signed_percent(ratio)
    return f"{ratio:+,.0%}".replace("-", "−")


def signed_points(ratio: float | None) -> str:
    """Format a difference of two ratios in percentage points: +1.4 points; "about 0 points" if it rounds to 0."""
    if finite(ratio) is None or ratio is None:
        return NO_DATA
    if abs(ratio) < 0.0005:
        return "about 0 points" if ratio else "0 points"
    return f"{ratio * 100.0:+.1f} points".replace("-", "−")


def signed(write: Write) -> Write:
    """Return a formatter of differences, which adds the sign: +1.4 s, "about 0 µs"; shares differ in points."""
    if write is percent:
        return signed_points

    def written(value: float | None) -> str:
        if value is None:
            return NO_DATA
        sign, text = "+" if value > 0 else "−" if value < 0 else "", write(abs(value))
        return f"about 0 {text.partition(' ')[2]}" if text.startswith("<") else sign + text

    return written


def with_interval(write: Write, value: float, low: float, high: float) -> str:
    """Format a value and its interval with one unit: 193 (186 to 204) ms; no interval if both ends read the same."""
    texts = [write(value), write(low), write(high)]
    if texts[1] == texts[2]:
        return texts[0]
    parts = [text.split(" ") for text in texts]
    if all(len(part) == 2 and part[1] == parts[0][1] for part in parts):
        return f"{parts[0][0]} ({parts[1][0]} to {parts[2][0]}) {parts[0][1]}"
    return f"{texts[0]} ({texts[1]} to {texts[2]})"


def between(first: str, last: str) -> str:
    """Join two written values, with their unit only once if they share it: 10 to 15 s."""
    number, _, unit = first.rpartition(" ")
    is_shared = number not in ("", "about 0") and last.endswith(f" {unit}")
    return f"{number if is_shared else first} to {last}"


def tokens(value: float | None) -> str:
    """Format a number of tokens: 12.3k tokens."""
    return NO_DATA if finite(value) is None else _with_noun(value, si(value), "token")


def tokens_per_second(value: float | None) -> str:
    """Format a rate: 12.3k tokens/s."""
    return NO_DATA if finite(value) is None else f"{si(value)} tokens/s"


def versions(value: float | None) -> str:
    """Format a staleness in versions: 2.41 versions."""
    return NO_DATA if finite(value) is None else _with_noun(value, significant(value), "version")


def optimizer_steps(value: float | None) -> str:
    """Format a staleness in optimizer steps: 2.41 steps."""
    return NO_DATA if finite(value) is None else _with_noun(value, significant(value), "step")


def preemptions(value: float | None) -> str:
    """Format a mean number of preemptions: 1.7 preemptions."""
    return NO_DATA if finite(value) is None else _with_noun(value, significant(value, 2), "preemption")


def gpu_time(gpu_s: float | None) -> str:
    """Format GPU-seconds, as GPU-hours from one hour on; less than one GPU-millisecond is <0.001 GPU-s."""
    if finite(gpu_s) is None or gpu_s is None:
        return NO_DATA
    if 0 < gpu_s < _LEAST_GPU_S:
        return f"<{_LEAST_GPU_S:g} GPU-s"
    if gpu_s >= _SECONDS_PER_HOUR:
        return f"{significant(gpu_s / _SECONDS_PER_HOUR)} GPU-h"
    return f"{significant(gpu_s)} GPU-s"


def money(gpu_s: float | None, price_per_gpu_hour: float | None, currency: str | None) -> str:
    """Format the cost of GPU-seconds at a price per GPU-hour; empty if either is unknown."""
    if finite(gpu_s) is None or gpu_s is None or price_per_gpu_hour is None:
        return ""
    amount = gpu_s / _SECONDS_PER_HOUR * price_per_gpu_hour
    return f"{_cents(amount)} {currency}" if currency else _cents(amount)


def _cents(amount: float) -> str:
    """Format an amount with two decimals below 100 and none from 100 on; an amount in (0, 0.005) is <0.01."""
    if 0 < amount < 0.005:
        return "<0.01"
    return f"{amount:,.2f}" if amount < 100 else f"{amount:,.0f}"


def duration(seconds: float | None) -> str:
    """Format a duration in at most two units: 850 µs, 12.3 ms, 4.56 s, 3 min 20 s, 2 h 5 min.

    A negative duration is a difference; if it is shorter than 0.1 µs it is a rounding error and becomes 0 s.
    """
    if finite(seconds) is None or seconds is None:
        return NO_DATA
    if 0 < abs(seconds) < _LEAST_S:
        return "<0.1 µs" if seconds > 0 else "0 s"
    if seconds < 0:
        return "−" + duration(-seconds)
    if seconds < 59.95:
        # From here on, three digits round up to the next unit.
        units = ((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= 0.9995 * s or not seconds)
        scale, unit = next(units, (1e-6, "µs"))
        return f"{significant(seconds / scale)} {unit}"
    whole = round(seconds)
    if whole < 3600:
        return _two_units(whole // 60, "min", whole % 60, "s")
    if whole < 86_400:
        return _two_units(whole // 3600, "h", whole % 3600 // 60, "min")
    return _two_units(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def size(value: float | None) -> str:
    """Format a number of bytes: 1.2 GB."""
    return in_unit(value, "B")


def instant(utc_ns: int | None) -> str:
    """Format a UTC timestamp to the second."""
    if utc_ns is None:
        return NO_DATA
    return datetime.fromtimestamp(utc_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def quantity(name: str, value: object) -> str:
    """Format a value in the unit that its name ends with: columns and evidence have their unit as a suffix."""
    if value is None:
        return NO_DATA
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name in _NOUNS:
        return counted(value, _NOUNS[name])
    for suffix, write in _BY_SUFFIX:
        if name == suffix.removeprefix("_") or name.endswith(suffix):
            return write(value)
    return count(value) if isinstance(value, int) else significant(value)


def _scaled(value: float) -> tuple[str, str]:
    """Return the digits of a number and its SI prefix, which is empty below 1,000."""
    for step, prefix in _SI_STEPS:
        # Otherwise 999.6 would be written "1,000".
        if abs(value) >= step * 0.9995:
            return significant(value / step), prefix
    return significant(value), ""


def _with_noun(value: float | None, text: str, noun: str) -> str:
    """Append the noun, in the singular only for exactly 1; a mean that rounds to 1 is "1.0 versions"."""
    if value == 1:
        return f"{text} {noun}"
    return f"{'1.0' if text == '1' else text} {noun}s"


def _two_units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


# Longer suffixes come first: a name that ends with _gpu_s also ends with _s.
_BY_SUFFIX: Final[tuple[tuple[str, Write], ...]] = (
    ("_tokens_per_s", tokens_per_second),
    ("_gpu_s", gpu_time),
    ("_per_s", lambda value: f"{si(value)}/s"),
    ("_ratio", percent),
    ("_versions", versions),
    ("_tokens", tokens),
    ("_bytes", size),
    ("_s", duration),
)


def bulleted(mark: str, text: str) -> Table:
    """Return a bullet followed by text that wraps beside it."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(mark), plain(text))
    return table


def plain(text: str) -> Text:
    """Return text from a run with its markup not interpreted and its control characters replaced."""
    return Text(printable(text))


def printable(text: str) -> str:
    """Return the text on one line, with each control character replaced."""
    return text_out.one_line(text)


def repr_of(kind: str, of: str, summary: str) -> str:
    """Return the `repr` of a result in one line: `Analysis('monday': the trainers limit the run)`."""
    text = printable(summary.rstrip("."))
    text = text if len(text) <= _REPR_CHARACTERS else text[: _REPR_CHARACTERS - 2].rstrip() + " …"
    return f"{kind}({of[:_REPR_CHARACTERS]!r}: {text})"
