"""Writes a run of any size with the recorder's own Parquet writer: made up, seeded, and consistent in itself.

Eight engines of 125 slots decode one token per running request and pass. Time is cut into periods of 250 passes; a
policy version is published and applied at the start of each, two engines applying it without a pause. A step trains
on what finished two periods before. So samples are 1,000 tokens long on average and hold about 5 versions, whatever
the size: 1,000,000 samples make 10^9 tokens, 5,000,000 version runs and 10,000,000 engine rows.

    python benchmarks/generated_run.py FOLDER --samples 1000000
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection
from rlscope_otel import schema
from rlscope_otel.parquet import write_table

ENGINES: Final = 8
TRAINERS: Final = 2
SLOTS: Final = 125
ROWS_PER_FILE: Final = 50_000
SAMPLES_STEP: Final = ENGINES * SLOTS
"""A run holds a multiple of this many samples, so that every slot generates as many."""
PERIOD_NS: Final = 5_060_000_000
ORIGIN_NS: Final = 1_760_000_000_000_000_000

MACROS: Final = """
CREATE MACRO chance(purpose, a, b) AS (hash($seed, purpose, a, b) % 1000003 + 1) / 1000005.0;
CREATE MACRO normal(purpose, a, b) AS
    sqrt(-2 * ln(chance(purpose, a, b))) * cos(2 * pi() * chance(purpose || ' angle', a, b));
CREATE MACRO period_start_ns(period) AS $origin_ns + period * $period_ns;
CREATE MACRO applies_in_flight(engine) AS engine >= 6;
CREATE MACRO is_held_back(engine, period) AS NOT applies_in_flight(engine) AND chance('held', engine, period) < 0.02;
"""

ROWS: Final = """
CREATE OR REPLACE TABLE rows AS
WITH paced AS (
    SELECT engine_row, engine_row // 250 AS period, engine_row % 250 AS place,
        if(applies_in_flight($engine), 0, 60_000_000) AS first_ns,
        CASE WHEN applies_in_flight($engine) THEN 20_240_000 WHEN is_held_back($engine, period) THEN 18_000_000
            ELSE 20_000_000 END AS pitch_ns,
        if(place = 0, 0, chance('row', $engine, engine_row) * 3_000_000)::BIGINT AS jitter_ns,
        if(place = 249, 0, chance('row', $engine, engine_row + 1) * 3_000_000)::BIGINT AS next_jitter_ns
    FROM range($periods * 250) AS numbers(engine_row)
)
SELECT engine_row,
    period_start_ns(period) + first_ns + place * pitch_ns + jitter_ns AS start_ns,
    period_start_ns(period) + first_ns + (place + 1) * pitch_ns + next_jitter_ns AS end_ns
FROM paced
"""

RESPONSES: Final = """
CREATE OR REPLACE TABLE responses AS
WITH drawn AS (
    SELECT slot, place, slot * 1_000_000 + place AS number,
        0.03 + exp(0.7 * normal('length', $engine, number)) AS length, -ln(chance('gap', $engine, number)) AS gap
    FROM range($slots) AS slots(slot), range($samples_per_slot) AS places(place)
),
placed AS (
    SELECT slot, place, number,
        (sum(length) OVER up_to / sum(length) OVER whole * 1000 * $samples_per_slot)::BIGINT AS tokens_to,
        floor(sum(gap) OVER up_to / sum(gap) OVER whole * 250 * $samples_per_slot)::BIGINT AS gaps_to
    FROM drawn
    WINDOW up_to AS (PARTITION BY slot ORDER BY place), whole AS (PARTITION BY slot)
)
SELECT slot, place, number, gaps_to + tokens_to AS to_row,
    gaps_to + coalesce(lag(tokens_to) OVER (PARTITION BY slot ORDER BY place), 0) AS from_row,
    (200 + chance('prompt', $engine, slot // 8 * 1_000_000 + place) * 800)::INTEGER AS prompt_tokens
FROM placed
"""

ENGINE_STEPS: Final = """
WITH changes AS (
    SELECT from_row AS engine_row, 1 AS change, prompt_tokens, prompt_tokens AS kv_tokens FROM responses
    UNION ALL SELECT to_row, -1, 0, from_row - to_row - prompt_tokens FROM responses
),
changed AS (
    SELECT engine_row, sum(change) AS change, sum(prompt_tokens) AS prefill_tokens, sum(kv_tokens) AS kv_change
    FROM changes GROUP BY engine_row
),
states AS (
    SELECT engine_row, start_ns, end_ns, coalesce(prefill_tokens, 0) AS prefill_tokens,
        coalesce(sum(change) OVER so_far, 0) AS running, coalesce(sum(kv_change) OVER so_far, 0) AS kv_start_tokens
    FROM rows LEFT JOIN changed USING (engine_row)
    WINDOW so_far AS (ORDER BY engine_row)
)
SELECT
    $worker_id AS worker_id, start_ns, end_ns, 1 AS forward_passes,
    ((end_ns - start_ns) * (0.9 + 0.08 * chance('busy', $engine, engine_row)))::BIGINT AS busy_ns,
    running, floor(3 * chance('waiting', $engine, engine_row // 20)) AS waiting,
    running AS decode_tokens, prefill_tokens,
    kv_start_tokens + sum(running) OVER (ORDER BY engine_row) AS kv_used_tokens,
    (chance('preempted', $engine, engine_row) < 0.001)::INTEGER AS preemptions
FROM states
ORDER BY engine_row
"""

SAMPLES: Final = """
SELECT
    format('e{}-{:03d}-{:06d}', $engine, slot, place) AS sample_id, 0 AS segment,
    format('g{}-{:02d}-{:06d}', $engine, slot // 8, place) AS group_id, $worker_id AS worker_id,
    firsts.start_ns - (chance('submitted', $engine, number) * 2e9)::BIGINT AS submitted_ns,
    firsts.start_ns AS started_ns, lasts.end_ns AS finished_ns, prompt_tokens, to_row - from_row AS output_tokens,
    list_transform(
        range(greatest(from_row // 250, $lag), greatest((to_row - 1) // 250, $lag) + 1),
        lambda period: {
            'version': period - $lag,
            'start': if(period = $lag, 0, greatest(0, period * 250 - from_row)),
            'end': least(to_row, (period + 1) * 250) - from_row
        }
    ) AS versions,
    if(chance('source', $engine, number) < 0.9, 'engine', 'time_join') AS version_source,
    if(applies_in_flight($engine), 0, NULL) AS torn_tokens,
    CASE WHEN chance('finish', $engine, number) < 0.002 THEN 'abort' WHEN to_row - from_row > 5000 THEN 'length'
        ELSE 'stop' END AS finish_reason,
    0 AS preemptions, prompt_tokens // 2 AS cached_tokens, NULL AS env_wait_ns
FROM responses
JOIN rows AS firsts ON firsts.engine_row = from_row
JOIN rows AS lasts ON lasts.engine_row = to_row - 1
ORDER BY to_row, slot
"""

DELIVERIES: Final = """
INSERT INTO taken
SELECT
    format('e{}-{:03d}-{:06d}', $engine, slot, place) AS sample_id, slot % $trainers AS trainer, to_row,
    rows.end_ns + 2_000_000 AS queued_ns, (to_row - 1) // 250 AS step,
    CASE WHEN (to_row - 1) // 250 >= $periods - $lag THEN 'abandoned'
        WHEN (to_row - from_row) > 2500 AND chance('stale', $engine, number) < 0.8 THEN 'dropped_stale'
        WHEN chance('filtered', $engine, slot // 8 * 1_000_000 + place) < 0.02 THEN 'filtered'
        ELSE 'trained' END AS outcome,
    (chance('reward', $engine, number) < 0.4)::DOUBLE AS reward, normal('advantage', $engine, number) AS advantage
FROM responses
JOIN rows ON rows.engine_row = to_row - 1
"""

TAKEN: Final = """
SELECT sample_id, $worker_id AS worker_id, queued_ns, period_start_ns(step + $lag) + 1_500_000_000 AS taken_ns, outcome,
    if(outcome = 'trained', step, NULL) AS step, if(outcome = 'trained', step, NULL) AS consumer_version,
    reward, advantage
FROM taken
WHERE trainer = $trainer
ORDER BY step, to_row
"""

ENGINE_UPDATES: Final = """
SELECT $worker_id AS worker_id, period - $lag AS version, NULL AS label, 'apply' AS phase,
    period_start_ns(period) + if(applies_in_flight($engine), 7_000_000, 0) AS start_ns,
    period_start_ns(period) + if(applies_in_flight($engine), 200_000_000, 60_000_000) AS end_ns,
    14_000_000_000 AS bytes, NOT applies_in_flight($engine) AS paused, 'kept' AS kv
FROM range($lag + 1, $periods) AS periods(period)
ORDER BY period
"""

ENGINE_ACTIVITIES: Final = """
SELECT $worker_id AS worker_id, activity, reason, start_ns, end_ns
FROM (
    SELECT 'startup' AS activity, NULL AS reason, $origin_ns - 9_000_000_000 AS start_ns, $origin_ns AS end_ns
    UNION ALL
    SELECT 'wait', 'backpressure', period_start_ns(period) + 4_560_000_000, period_start_ns(period + 1)
    FROM range($periods) AS periods(period) WHERE is_held_back($engine, period)
    UNION ALL
    SELECT 'eval', NULL, period_start_ns(period) + 3_055_000_000, period_start_ns(period) + 3_955_000_000
    FROM range(50, $periods, 100) AS periods(period)
)
ORDER BY start_ns
"""

TRAIN_STEPS: Final = """
WITH used AS (
    SELECT step, count(*) AS samples, avg(reward) AS reward_mean FROM taken WHERE outcome = 'trained' GROUP BY step
)
SELECT $worker_id AS worker_id, step, period_start_ns(step + $lag) + 1_500_000_000 + $trainer * 1_000_000 AS start_ns,
    period_start_ns(step + $lag + 1) - (200_000_000 + chance('train', $trainer, step) * 300_000_000)::BIGINT AS end_ns,
    step AS version_in, step + 1 AS version_out, samples // $trainers AS samples, samples // $trainers * 1600 AS tokens,
    normal('loss', $trainer, step) AS loss, 1 + chance('norm', $trainer, step) AS grad_norm, 0.5 AS entropy,
    reward_mean, 0.1 AS clip_ratio,
    list_transform(range(2, 10), lambda staleness: {'staleness': staleness::INTEGER, 'tokens': 1000,
        'sum_w': 1000.0 + staleness, 'sum_w2': 1000.0 + staleness * staleness}) AS importance
FROM used
ORDER BY step
"""

TRAINER_UPDATES: Final = """
SELECT $worker_id AS worker_id, step + 1 AS version, NULL AS label, 'publish' AS phase,
    period_start_ns(step + $lag + 1) - 150_000_000 AS start_ns, period_start_ns(step + $lag + 1) - 20_000_000 AS end_ns,
    14_000_000_000 AS bytes, NULL AS paused, NULL AS kv
FROM range($periods - $lag) AS steps(step)
WHERE $trainer = 0
ORDER BY step
"""

TRAINER_ACTIVITIES: Final = """
SELECT $worker_id AS worker_id, activity, reason, start_ns, end_ns
FROM (
    SELECT 'wait' AS activity, 'samples' AS reason, period_start_ns(step + $lag) AS start_ns,
        period_start_ns(step + $lag) + 500_000_000 + (chance('wait', $trainer, step) * 5e8)::BIGINT AS end_ns
    FROM range(-$lag, $periods - $lag) AS steps(step)
    UNION ALL
    SELECT 'logprobs', NULL, period_start_ns(step + $lag) + 1_000_000_000, period_start_ns(step + $lag) + 1_490_000_000
    FROM range($periods - $lag) AS steps(step)
    UNION ALL
    SELECT 'checkpoint', NULL,
        period_start_ns(step + $lag) + 2_000_000_000, period_start_ns(step + $lag) + 3_000_000_000
    FROM range(100, $periods - $lag, 200) AS steps(step)
)
ORDER BY start_ns
"""

QUEUE_DEPTHS: Final = """
SELECT 'samples' AS queue, $worker_id AS worker_id, $origin_ns + second * 1_000_000_000 AS time_ns,
    (400 + 50 * normal('depth', $trainer, second))::BIGINT AS depth, 2000 AS capacity
FROM range($periods * $period_ns // 1_000_000_000) AS seconds(second)
WHERE $trainer = 0
ORDER BY second
"""

GPU_SAMPLES: Final = """
SELECT $worker_id AS worker_id, '0' AS gpu_id, $origin_ns + second * 1_000_000_000 AS time_ns,
    0.6 + 0.2 * chance('sm', $worker_id, second) AS sm_active_ratio,
    0.8 + 0.2 * chance('gpu', $worker_id, second) AS busy_ratio,
    60_000_000_000 AS memory_used_bytes, 500.0 AS power_w, 'gpm' AS source
FROM range(1, $periods * $period_ns // 1_000_000_000) AS seconds(second)
ORDER BY second
"""


class Shape(NamedTuple):
    """How much of everything."""

    samples: int
    seed: int
    gpu_samples: bool
    lag: int = 2
    """Periods between the end of a sample and the step that trains on it."""

    @property
    def samples_per_slot(self) -> int:
        return max(1, self.samples // SAMPLES_STEP)

    @property
    def periods(self) -> int:
        return self.samples_per_slot * 5


def generate(folder: Path, shape: Shape) -> dict[str, int]:
    """Write the run; returns its rows by table."""
    connection = duckdb.connect(config={"memory_limit": "3GB"})
    connection.execute(_filled(MACROS, {"seed": shape.seed, "origin_ns": ORIGIN_NS, "period_ns": PERIOD_NS}))
    connection.execute(
        "CREATE TABLE taken (sample_id VARCHAR, trainer BIGINT, to_row BIGINT, queued_ns BIGINT, step BIGINT, "
        "outcome VARCHAR, reward DOUBLE, advantage DOUBLE)"
    )
    totals = dict.fromkeys(schema.TABLES, 0)
    for engine in range(ENGINES):
        rows = _write_engine(connection, folder, shape, engine)
        totals = {table: count + rows.get(table, 0) for table, count in totals.items()}
    for trainer in range(TRAINERS):
        rows = _write_trainer(connection, folder, shape, trainer)
        totals = {table: count + rows.get(table, 0) for table, count in totals.items()}
    manifest = {"format": schema.FORMAT_NAME, "version": schema.FORMAT_VERSION, "run_id": "generated"}
    config = {"group_size": 8, "max_staleness": 12, "staleness_policy": "drop", "samples_per_step": 200}
    _write_json(folder / "run.json", {**manifest, "created_ns": ORIGIN_NS - 10**10, "config": config})
    return totals


def _write_engine(connection: DuckDBPyConnection, folder: Path, shape: Shape, engine: int) -> dict[str, int]:
    worker_id = f"sampler-{engine}"
    values = _values(shape) | {"engine": engine, "worker_id": worker_id}
    for statement in (ROWS, RESPONSES, DELIVERIES):
        connection.execute(_filled(statement, values))
    tables = {
        "engine_steps": ENGINE_STEPS,
        "samples": SAMPLES,
        "weight_updates": ENGINE_UPDATES,
        "activities": ENGINE_ACTIVITIES,
    }
    rows = _write_tables(connection, folder, worker_id, tables, shape, values)
    _write_worker(folder, worker_id, "sampler", f"host-{engine // 4}", shape, rows)
    return rows


def _write_trainer(connection: DuckDBPyConnection, folder: Path, shape: Shape, trainer: int) -> dict[str, int]:
    worker_id = f"trainer-{trainer}"
    values = _values(shape) | {"trainer": trainer, "worker_id": worker_id}
    tables = {
        "deliveries": TAKEN,
        "train_steps": TRAIN_STEPS,
        "weight_updates": TRAINER_UPDATES,
        "activities": TRAINER_ACTIVITIES,
        "queue_depths": QUEUE_DEPTHS,
    }
    rows = _write_tables(connection, folder, worker_id, tables, shape, values)
    _write_worker(folder, worker_id, "trainer", "host-2", shape, rows)
    return rows


def _write_tables(
    connection: DuckDBPyConnection,
    folder: Path,
    worker_id: str,
    tables: Mapping[str, str],
    shape: Shape,
    values: Mapping[str, int | str],
) -> dict[str, int]:
    wanted = {**tables, "gpu_samples": GPU_SAMPLES} if shape.gpu_samples else tables
    return {name: _write(connection, folder, name, worker_id, _filled(sql, values)) for name, sql in wanted.items()}


def _write(connection: DuckDBPyConnection, folder: Path, name: str, worker_id: str, sql: str) -> int:
    table = _as_recorded(connection.sql(sql).to_arrow_table(), name)
    for sequence, first in enumerate(range(0, table.num_rows, ROWS_PER_FILE), start=1):
        path = folder / name / f"{worker_id}-{sequence:06d}.parquet"
        write_table(table.slice(first, ROWS_PER_FILE).combine_chunks(), path)
    return table.num_rows


def _as_recorded(table: pa.Table, name: str) -> pa.Table:
    """The table with the format's own types."""
    recorded = schema.arrow_schema(name)
    assert table.column_names == recorded.names, f"{name}: {table.column_names}"
    columns = [_as_type(table.column(field.name).combine_chunks(), field.type) for field in recorded]
    return pa.Table.from_arrays(columns, schema=recorded)


def _as_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if not pa.types.is_list(wanted):
        return array.cast(wanted)
    inner = array.flatten()
    fields = [inner.field(field.name).cast(field.type) for field in wanted.value_type]
    elements = pa.StructArray.from_arrays(fields, fields=list(wanted.value_type))
    return pa.ListArray.from_arrays(array.offsets, elements, type=wanted)


def _write_worker(folder: Path, worker_id: str, role: str, host: str, shape: Shape, rows: Mapping[str, int]) -> None:
    end_ns = ORIGIN_NS + shape.periods * PERIOD_NS
    document = {
        "worker_id": worker_id,
        "role": role,
        "host": host,
        "pid": 1,
        "gpu_count": 1 if role == "sampler" else 4,
        "device_name": "generated",
        "kv_capacity_tokens": 400_000,
        "max_running": SLOTS,
        "started_ns": ORIGIN_NS - 10**10,
        "stopped_ns": end_ns,
        "last_flush_ns": end_ns,
        "rows": dict(rows),
        "dropped": {},
    }
    _write_json(folder / "workers" / f"{worker_id}.json", document)


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _values(shape: Shape) -> dict[str, int | str]:
    return {
        "seed": shape.seed,
        "origin_ns": ORIGIN_NS,
        "period_ns": PERIOD_NS,
        "periods": shape.periods,
        "samples_per_slot": shape.samples_per_slot,
        "slots": SLOTS,
        "trainers": TRAINERS,
        "lag": shape.lag,
    }


def _filled(sql: str, values: Mapping[str, int | str]) -> str:
    """The statement with its values written in: macros and CREATE TABLE take no parameters."""
    for name in sorted(values, key=len, reverse=True):
        value = values[name]
        sql = sql.replace(f"${name}", f"'{value}'" if isinstance(value, str) else str(value))
    return sql


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000, help=f"rounded down to a multiple of {SAMPLES_STEP}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpu-samples", action="store_true", help="also a GPU reading per worker and second")
    given = parser.parse_args()
    for table, rows in generate(given.folder, Shape(given.samples, given.seed, given.gpu_samples)).items():
        print(f"{table:14} {rows:12,} rows")


if __name__ == "__main__":
    main()
