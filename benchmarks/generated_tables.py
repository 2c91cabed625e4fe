"""The SQL that makes the tables of a generated run; `generated_run.py` fills in the values and writes them."""

from typing import Final

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
    (chance('preempted', $engine, engine_row) < 0.001)::INTEGER AS preemptions, 'measured' AS source
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
    (chance('reward', $engine, number) < 0.4)::DOUBLE AS reward
FROM responses
JOIN rows ON rows.engine_row = to_row - 1
"""

TAKEN: Final = """
SELECT sample_id, $worker_id AS worker_id, queued_ns, period_start_ns(step + $lag) + 1_500_000_000 AS taken_ns, outcome,
    if(outcome = 'trained', step, NULL) AS step, if(outcome = 'trained', step, NULL) AS consumer_version,
    reward
FROM taken
WHERE trainer = $trainer
ORDER BY step, to_row, sample_id
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
    step AS version_in, step + 1 AS version_out, $copies * samples // $trainers AS samples,
    $copies * samples // $trainers * 1600 AS tokens,
    normal('loss', $trainer, step) AS loss, 1 + chance('norm', $trainer, step) AS grad_norm, 0.5 AS entropy,
    reward_mean, 0.1 AS clip_ratio, 0.02 AS truncated_ratio,
    list_transform(range(2, 10), lambda staleness: {'staleness': staleness::INTEGER, 'tokens': 1000,
        'sum_w': 1000.0 + staleness, 'sum_w2': 1000.0 + staleness * staleness}) AS importance,
    0 AS fresh_tokens, 0.0 AS fresh_sum_w, 0.0 AS fresh_sum_w2
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
    'gpm' AS source
FROM range(1, $periods * $period_ns // 1_000_000_000) AS seconds(second)
ORDER BY second
"""
