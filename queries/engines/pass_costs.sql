-- How long did forward passes take in the interval, by batch size, prompt tokens and resident KV?
--
-- in   engine_steps, workers, activities, weight_updates
-- arg  from_ns         BIGINT   start of the interval, UTC epoch
-- arg  to_ns           BIGINT   its end, exclusive
-- arg  one_row_in      BIGINT   medians are of one row in this many
-- out  worker_id       VARCHAR  engine
-- out  running         INTEGER  requests in the batch
-- out  in_update       BOOLEAN  whether weights were moved to the engine, or loaded into it, while it generated
-- out  prefills        BOOLEAN  whether the passes computed prompt tokens too
-- out  prefill_level   INTEGER  prompt tokens of a pass on a log2 scale in steps of 1/2; NULL without any
-- out  kv_level        INTEGER  resident tokens on a log2 scale in steps of 1/8; NULL if not recorded
-- out  rows            BIGINT   engine rows
-- out  passes          BIGINT   forward passes
-- out  busy_s          DOUBLE   time inside them, seconds
-- out  between_s       DOUBLE   time between passes inside the rows, seconds
-- out  pass_p50_s      DOUBLE   median over rows of the row's mean pass, seconds; the mean if no row was taken
-- out  decode_tokens   BIGINT   tokens produced
-- out  prefill_tokens  BIGINT   prompt tokens computed
-- out  kv_used_tokens  DOUBLE   resident tokens, mean over passes; NULL if not recorded
-- grain: one row per engine, batch size, in_update, prefill_level and kv_level
-- partition: worker
-- merge: concatenate
--
-- Rows that start inside an evaluation or a start-up are left out, as in the ledger, which counts that time as such. A
-- row belongs to an update if it starts inside it. What other workers transfer is for all engines.
WITH claimed AS (
    SELECT worker_id, start_ns AS from_ns, end_ns AS to_ns, false AS is_update
    FROM activities
    WHERE activity IN ('eval', 'startup')
    UNION ALL
    SELECT worker_id, start_ns, end_ns, true
    FROM weight_updates
    WHERE (phase = 'transfer' AND worker_id IN (SELECT worker_id FROM workers WHERE role = 'sampler'))
        OR (phase = 'apply' AND paused IS FALSE)
    UNION ALL
    SELECT engines.worker_id, min(weight_updates.start_ns), max(weight_updates.end_ns), true
    FROM weight_updates
    JOIN workers AS senders ON weight_updates.worker_id = senders.worker_id AND senders.role IN ('trainer', 'controller')
    CROSS JOIN (SELECT worker_id FROM workers WHERE role = 'sampler') AS engines
    WHERE phase = 'transfer'
    GROUP BY engines.worker_id, version
),
in_cells AS (
    SELECT *, unnest(range(from_ns // 10000000000, to_ns // 10000000000 + 1)) AS ten_seconds
    FROM claimed
    WHERE to_ns > $from_ns AND from_ns < $to_ns
),
spans AS (
    SELECT worker_id, ten_seconds,
        list({'from_ns': from_ns, 'to_ns': to_ns}) FILTER (NOT is_update) AS left_out,
        list({'from_ns': from_ns, 'to_ns': to_ns}) FILTER (is_update) AS updates
    FROM in_cells
    GROUP BY worker_id, ten_seconds
)
SELECT
    engine.worker_id,
    running,
    starts_in_any(start_ns, updates) AS in_update,
    prefill_tokens > 0 AS prefills,
    if(prefill_tokens > 0, floor(2 * log2(prefill_tokens / forward_passes)), NULL)::INTEGER AS prefill_level,
    floor(8 * log2(if(kv_used_tokens < 1, 1, kv_used_tokens)))::INTEGER AS kv_level,
    count(*) AS rows,
    sum(forward_passes)::BIGINT AS passes,
    sum(busy_ns) / 1e9 AS busy_s,
    sum(end_ns - start_ns - busy_ns) / 1e9 AS between_s,
    coalesce(
        quantile_cont(busy_ns / forward_passes, 0.5) FILTER (is_one_in(start_ns, $one_row_in)),
        sum(busy_ns) / sum(forward_passes)
    ) / 1e9 AS pass_p50_s,
    sum(decode_tokens)::BIGINT AS decode_tokens,
    sum(prefill_tokens)::BIGINT AS prefill_tokens,
    sum(kv_used_tokens * forward_passes) / sum(forward_passes)::DOUBLE AS kv_used_tokens
FROM policy_rows() AS engine
LEFT JOIN spans ON engine.worker_id = spans.worker_id AND start_ns // 10000000000 = ten_seconds
WHERE start_ns >= $from_ns AND start_ns < $to_ns AND forward_passes > 0 AND busy_ns IS NOT NULL
    AND end_ns > start_ns AND NOT starts_in_any(start_ns, left_out)
GROUP BY ALL
ORDER BY engine.worker_id, running, in_update, prefill_level NULLS FIRST, kv_level
