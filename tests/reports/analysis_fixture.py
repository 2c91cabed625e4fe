"""Analyses made by hand: a full run, and the runs that break pages (empty, single, hostile, many engines)."""

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import polars as pl

from rlscope.analysis.data_quality import ClockOffset, DataQuality
from rlscope.analysis.result import (
    AnalysisResult,
    Finding,
    Ledger,
    LedgerState,
    Loss,
    RunFacts,
    SampleStaleness,
    Staleness,
    SteadyWindow,
    Throughput,
    TokenStaleness,
    Verdict,
)
from rlscope.pipeline import DRAWN, QUESTIONS
from rlscope.trace.completeness import Completeness
from rlscope.trace.files import SkippedFile
from rlscope.trace.questions import find_question

STARTED_NS = 1_763_700_000_000_000_000
DURATION_S = 1_260
BUCKET_S = 10
STEPS = 240
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"


def frame(text: str) -> pl.DataFrame:
    """A frame from its header and its rows, whose values are JSON without spaces."""
    header, *lines = [line.split() for line in text.strip().splitlines()]
    return pl.DataFrame({name: [json.loads(line[n]) for line in lines] for n, name in enumerate(header)})


def answer(question: str, rows: Sequence[Sequence[object]], left_out: Sequence[str] = ()) -> pl.DataFrame:
    """The answer to a question with these rows, of its first columns without those that are left out."""
    columns = [column for column in find_question(question).outputs if column.name not in left_out]
    if not rows:
        return pl.DataFrame(schema={column.name: KINDS.get(column.type, pl.Int64) for column in columns})
    names = [column.name for column in columns[: len(rows[0])]]
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)


KINDS = {"VARCHAR": pl.String, "BOOLEAN": pl.Boolean, "DOUBLE": pl.Float64}
"""Kinds of the columns that hold no whole numbers."""
LEDGER_TIMELINE = ("role", "state", "reason", "bucket_start_ns", "gpu_s")
ASKED = ("token_staleness_by_step", "staleness_histogram", "batch_size", "waiting_requests", "kv_use", "pass_latency",
         "queue_depth", "training_steps", "weight_update_latency", "response_lengths", "delivery_outcomes",
         "token_balance", "throughput")  # fmt: skip
LEFT_OUT = ("kv_used_max_tokens", "version_in", "version_out")
NO_ROWS: dict[str, pl.DataFrame] = {
    "ledger_timeline": pl.DataFrame(schema=dict.fromkeys(LEDGER_TIMELINE, pl.Int64)),
    **{question: answer(question, []) for question in (*QUESTIONS, *DRAWN)},
}
"""Every answer of an analysis, without a row."""


def full_analysis(
    engines: int = 4, engine_prefix: str = "sampler-", run_id: str = "grpo-math-7b-2026-11-21"
) -> AnalysisResult:
    """A plausible run: trainers wait for samples, engines are underfilled, one engine straggles."""
    rng = random.Random(7)
    workers = [f"{engine_prefix}{n}" for n in range(engines)]
    timeline = _timeline(rng, engines)
    histogram = ((0, 410_000), (1, 2_950_000), (2, 4_120_000), (3, 2_380_000), (4, 1_020_000), (5, 164_000), (6, 9_000))
    window = SteadyWindow(at_ns(180), at_ns(1_150), 24, 221)
    return AnalysisResult(
        run=RunFacts(run_id, STARTED_NS, float(DURATION_S), 2 + engines, 2, engines, 0, STEPS, 30_720, 11_053_000, 4,
                     window, "the longest stretch in which the step time stays within 10% of its median"),
        verdict=Verdict("samplers", (Loss("samplers", 892.4, 0.46), Loss("weight_updates", 96.1, 0.017),
                                     Loss("staleness_cap", 40.2, 0.021)), None, window.start_ns, window.end_ns),
        throughput=Throughput(8_772.2, 9_310.5, 9_120.0),
        ledger=_ledger(timeline),
        staleness=Staleness(TokenStaleness(2.12, 2, 4, 5, 6, histogram), SampleStaleness(2.9, 5, 6), 0.82, 1.3, 173_000,
                            {"engine": 10_900_000, "time_join": 153_000}),
        findings=_findings(workers),
        data_quality=DataQuality(
            (SkippedFile("samples/sampler-1-00012.parquet", "not a Parquet file: no magic bytes at its end"),),
            {"engine_steps": 812, "samples": 0}, (workers[-1],), (ClockOffset("node-2", "node-1", 0.0021, 0.0004),),
            ("12 deliveries name a sample that no file holds.",)),
        answers=_answers(rng, workers, timeline, histogram),
    )  # fmt: skip


def empty_analysis() -> AnalysisResult:
    """A run of which nothing is known but that it began."""
    return AnalysisResult(
        run=RunFacts("empty", STARTED_NS, 0.0, 0, 0, 0, 0, 0, 0, 0, None, None, "no training step was recorded"),
        verdict=Verdict("unknown", (), "no worker wrote anything", STARTED_NS, STARTED_NS),
        throughput=Throughput(None, None, None),
        ledger=Ledger(0, ()),
        staleness=Staleness(None, None, None, None, None, {}),
        findings=(),
        data_quality=DataQuality((), {}, (), (), (), completeness=Completeness("complete")),
        answers=NO_ROWS,
    )


def without_frames() -> AnalysisResult:
    """The full facts, and not one frame to draw."""
    return replace(full_analysis(), answers=NO_ROWS)


def hostile_analysis() -> AnalysisResult:
    """Every string that a run can supply tries to leave its place on the page."""
    analysis = full_analysis(engine_prefix=HOSTILE, run_id=HOSTILE)
    quality = replace(
        analysis.data_quality,
        skipped_files=(SkippedFile(HOSTILE, HOSTILE),),
        dropped_rows={HOSTILE: 3},
        gaps=(HOSTILE,),
    )
    states = (*analysis.ledger.states, LedgerState("sampler", HOSTILE, HOSTILE, 0, 0.0, None))
    return replace(
        analysis,
        data_quality=quality,
        ledger=replace(analysis.ledger, states=states),
    )


def at_ns(second: float) -> int:
    """So many seconds after the start of the run."""
    return STARTED_NS + round(second * 1e9)


def _findings(workers: list[str]) -> tuple[Finding, ...]:
    start, end = at_ns(180), at_ns(1_150)
    return (
        Finding("starved_trainer", "critical", 892.4, {"waiting_gpu_s": 892.4, "waiting_share_ratio": 0.46,
                "longest_wait_s": 7.31}, start, end),
        Finding("underfilled_engines", "warning", 610.0, {"running_mean": 21.4, "running_cap": 64,
                "fill_ratio": 0.334, "decoding_gpu_s": 3_120.0}, start, end),
        Finding("straggling_engine", "warning", 212.0, {"worker_id": workers[-1], "tokens_per_s": 1_120.0,
                "median_tokens_per_s": 2_640.0, "slowdown_ratio": 0.42}, start, end),
        Finding("weight_update_cost", "info", 96.1, {"updates": 240, "publish_gpu_s": 38.2, "apply_gpu_s": 57.9,
                "share_ratio": 0.017, "apply_mean_s": 0.061}, start, end),
        Finding("data_quality_gaps", "warning", None, {"skipped_files": 1, "dropped_rows": 812,
                "workers_without_end": 1, "unattributed_share_ratio": 0.018}, None, None),
    )  # fmt: skip


TRAINER_SHARES = {("startup", None): 0.03, ("train", None): 0.41, ("logprobs", None): 0.05,
                  ("waiting_for_samples", "samples"): 0.42, ("waiting_for_staleness_cap", "staleness_cap"): 0.02,
                  ("publishing_weights", None): 0.02, ("checkpoint", None): 0.02, ("eval", None): 0.02,
                  ("unattributed", None): 0.01}  # fmt: skip
SAMPLER_SHARES = {("startup", None): 0.03, ("decoding", None): 0.63, ("mixed_passes", None): 0.08,
                  ("prefilling", None): 0.03, ("between_passes", None): 0.06, ("applying_weights", None): 0.02,
                  ("no_requests", "environment"): 0.07, ("no_requests", "backpressure"): 0.04,
                  ("eval", None): 0.02, ("unattributed", None): 0.02}  # fmt: skip


def _timeline(rng: random.Random, engines: int) -> pl.DataFrame:
    rows: list[tuple[str, str, str | None, int, float]] = []
    for bucket in range(DURATION_S // BUCKET_S):
        for role, gpus, shares in (("trainer", 2, TRAINER_SHARES), ("sampler", engines, SAMPLER_SHARES)):
            weights = {key: share * rng.uniform(0.6, 1.4) for key, share in shares.items() if _happens(key[0], bucket)}
            total = sum(weights.values())
            rows += [
                (role, state, reason, at_ns(bucket * BUCKET_S), gpus * BUCKET_S * weight / total)
                for (state, reason), weight in weights.items()
            ]
    return pl.DataFrame(rows, schema=LEDGER_TIMELINE, orient="row")


def _happens(state: str, bucket: int) -> bool:
    if state == "startup" or bucket < 4:
        return state == "startup" and bucket < 4
    return bucket % 24 == 0 if state in ("eval", "checkpoint") else True


def _ledger(timeline: pl.DataFrame) -> Ledger:
    sums = (
        timeline.group_by("role", "state", "reason").agg(pl.col("gpu_s").sum()).sort("role", "gpu_s", descending=True)
    )
    roles = dict(sums.group_by("role").agg(pl.col("gpu_s").sum()).iter_rows())
    states = tuple(
        LedgerState(role, state, reason, round(gpu_s * 1e9), gpu_s / roles[role], 0.04 if state == "train" else None)
        for role, state, reason, gpu_s in sums.iter_rows()
    )
    return Ledger(sum(state.gpu_ns for state in states), states)


def _answers(
    rng: random.Random, workers: list[str], timeline: pl.DataFrame, histogram: Iterable[tuple[int, int]]
) -> dict[str, pl.DataFrame]:
    buckets = range(40, DURATION_S, BUCKET_S)
    engine_rows = [
        (worker, at_ns(t), 10 + 16 * abs(math.sin(t / 90 + n)) + rng.uniform(0, 4), rng.randint(26, 44))
        for n, worker in enumerate(workers)
        for t in buckets
    ]
    last = len(workers) - 1
    rows: dict[str, list[tuple[object, ...]]] = {
        "token_staleness_by_step": [
            (s, 46_000 + s, 2.1 + 0.6 * math.sin(s / 17), 2, 4 + (s % 31 == 0), 5, 5 + (s % 31 == 0), 0.8, 1.3)
            for s in range(STEPS)
        ],
        "staleness_histogram": list(histogram),
        "batch_size": engine_rows,
        "waiting_requests": [(w, t, max(0.0, m - 20)) for w, t, m, _ in engine_rows],
        "kv_use": [(w, t, 1_800.0 * m, 262_144) for w, t, m, _ in engine_rows],
        "pass_latency": [
            (w, b, p := 900 - 12 * b, b * p, m := 0.011 + 0.00028 * b + 0.012 * (n == last), m * 0.97, m * 1.3)
            for n, w in enumerate(workers[:8])
            for b in range(1, 48, 2)
        ],
        "queue_depth": [
            ("samples", at_ns(t), 40 + 38 * math.sin(t / 60), 50 + 40 * math.sin(t / 60), 128) for t in buckets
        ],
        "training_steps": [
            (s, at_ns(40 + 5 * s), at_ns(42.4 + 5 * s), None if s == 0 else 5 + rng.uniform(-0.4, 0.9),
             2.4 + rng.uniform(-0.1, 0.1), 128, 61_000, 46_000, -0.5 + s / 200)
            for s in range(STEPS)
        ],
        "weight_update_latency": [
            (v, w, at_ns(40 + 5 * v), at_ns(40.4 + 5 * v), 0.35 + rng.expovariate(9), 0.05 + rng.expovariate(80))
            for v in range(1, STEPS)
            for w in workers[:8]
        ],
        "response_lengths": [
            (64 * b, 64 * (b + 1), int(4_000 * math.exp(-((b - 4) ** 2) / 18)), 900 if b == 15 else 0, 9 * (b > 9))
            for b in range(16)
        ],
        "delivery_outcomes": [
            ("trained", 30_720, 11_053_000, 359.8, 1.0),
            ("dropped_stale", 1_204, 610_000, 506.6, 1.41),
            ("filtered", 640, 201_000, 314.1, 0.87),
        ],
        "token_balance": [(11_950_000, 11_053_000, 610_000, 201_000, 0, 86_000)],
        "throughput": [
            (at_ns(t), 9_300 + 900 * math.sin(t / 45), 9_500 + 700 * math.sin(t / 45 + 0.7)) for t in buckets
        ],
    }  # fmt: skip
    frames = {question: answer(question, rows[question], LEFT_OUT) for question in ASKED}
    return {**NO_ROWS, "ledger_timeline": timeline, **frames, **_flow(rng, len(workers))}


def _flow(rng: random.Random, engines: int) -> dict[str, pl.DataFrame]:
    """Tokens and weights on their way: columns of two steps and 10 s, tokens up to six versions old, a cap of four."""
    heat: list[tuple[float, ...]] = []
    parts: list[tuple[float, ...]] = []
    spread: list[tuple[float, ...]] = []
    for n in range(120):
        column = (2 * n, 2 * n + 1, at_ns(40 + 10 * n), at_ns(50 + 10 * n))
        weights = [math.exp(-((age - 2 - math.sin(n / 9)) ** 2)) for age in range(6 if n % 7 else 7)]
        shares = [weight / sum(weights) for weight in weights]
        heat += [(*column, age, age, round(92_000 * share), share) for age, share in enumerate(shares)]
        parts.append((*column, 92_000, 2 + math.sin(n / 9), 4, 5 if n % 7 else 6, 0.8, 1.2 + math.sin(n / 9)))
        first_s = 0.3 + rng.uniform(0, 0.2)
        updated = (engines, engines, first_s, first_s + rng.uniform(0, 0.5), 0.06, 0.2)
        spread.append((n + 1, n + 1, at_ns(40 + 10 * n), *updated))
    # The effective share is mean² / (variance + mean²).
    moments = [(age, 10_000 * (7 - age), 1.0, 0.02 * age, 1 / (1 + 0.02 * age)) for age in range(7)]
    waits = [(0.5 * b, 0.5 * (b + 1), 4_000 // (b + 1), 40 * b) for b in range(12)]
    rows: dict[str, list[tuple[float, ...]]] = {
        "staleness_heat": heat, "staleness_parts": parts, "weight_update_spread": spread, "version_moments": moments,
        "queue_wait_counts": waits,
    }  # fmt: skip
    return {question: answer(question, found) for question, found in rows.items()}
