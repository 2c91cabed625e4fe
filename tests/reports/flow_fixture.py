"""Answers about tokens and weights on their way, made by hand: ages, single samples, waits, lengths, updates."""

import math
import random
from collections.abc import Sequence

import polars as pl

from rlscope.trace.questions import find_question

STEP_S = 10
"""Seconds of a column of two steps."""
COLUMNS = 120


def answer(question: str, rows: Sequence[Sequence[object]], left_out: Sequence[str] = ()) -> pl.DataFrame:
    """The answer to a question with these rows, of its first columns without those that are left out."""
    columns = [column.name for column in find_question(question).outputs if column.name not in left_out]
    if not rows:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
    return pl.DataFrame(rows, schema=columns[: len(rows[0])], orient="row")


def flow_answers(rng: random.Random, workers: list[str], started_ns: int) -> dict[str, pl.DataFrame]:
    """The frames of a run whose tokens are up to six versions old, under a cap of four."""
    starts = [started_ns + (40 + STEP_S * n) * 10**9 for n in range(COLUMNS)]
    return {
        "staleness_heat": _heat(starts),
        "staleness_parts": _parts(starts),
        "version_moments": _moments(),
        "queue_wait_counts": _wait_counts(),
        "weight_update_spread": _spread(rng, len(workers), starts),
    }


def _ends(starts: list[int]) -> list[int]:
    return [*starts[1:], starts[-1] + STEP_S * 10**9]


def _heat(starts: list[int]) -> pl.DataFrame:
    rows: list[tuple[int, int, int, int, int, int, int, float]] = []
    for n, (start, end) in enumerate(zip(starts, _ends(starts), strict=True)):
        weights = [math.exp(-((age - 2 - math.sin(n / 9)) ** 2)) for age in range(6 if n % 7 else 7)]
        shares = [weight / sum(weights) for weight in weights]
        rows += [(2 * n, 2 * n + 1, start, end, age, age, round(92_000 * s), s) for age, s in enumerate(shares)]
    return answer("staleness_heat", rows)


def _parts(starts: list[int]) -> pl.DataFrame:
    rows = [
        (2 * n, 2 * n + 1, start, end, 92_000, 2 + math.sin(n / 9), 4, 5 if n % 7 else 6, 0.8, 1.2 + math.sin(n / 9))
        for n, (start, end) in enumerate(zip(starts, _ends(starts), strict=True))
    ]
    return answer("staleness_parts", rows)


def _moments() -> pl.DataFrame:
    """As version_moments answers: the effective share is mean² / (variance + mean²)."""
    rows = [(age, 10_000 * (7 - age), 1.0, 0.02 * age, 1 / (1 + 0.02 * age)) for age in range(7)]
    return answer("version_moments", rows)


def _wait_counts() -> pl.DataFrame:
    return answer("queue_wait_counts", [(0.5 * b, 0.5 * (b + 1), 4_000 // (b + 1), 40 * b) for b in range(12)])


def _spread(rng: random.Random, engines: int, starts: list[int]) -> pl.DataFrame:
    rows: list[tuple[float, ...]] = []
    for n, start in enumerate(starts, start=1):
        first_s = 0.3 + rng.uniform(0, 0.2)
        rows.append((n, n, start, engines, engines, first_s, first_s + rng.uniform(0, 0.5), 0.06, 0.2))
    return answer("weight_update_spread", rows)
