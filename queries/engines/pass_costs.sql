-- How long did forward passes take in the interval, by batch size, prompt tokens and resident KV?
--
-- in   engine_steps, workers, activities
-- arg  from_ns         BIGINT   start of the interval, UTC epoch
-- arg  to_ns           BIGINT   its end, exclusive
-- arg  one_row_in      BIGINT   medians are of one row in this many
-- out  worker_id       VARCHAR  engine
-- out  running         INTEGER  requests in the batch
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
-- grain: one row per engine, batch size, prefill_level and kv_level
-- partition: worker
-- merge: concatenate
--
-- Rows that start inside an evaluation or a start-up are left out, as in the ledger, which counts that time as such.
WITH claimed AS (
    SELECT worker_id, start_ns AS from_ns, end_ns AS to_ns,
        unnest(range(start_ns // 10000000000, end_ns // 10000000000 + 1)) AS ten_seconds
    FROM activities
    WHERE activity IN ('eval', 'startup') AND end_ns > $from_ns AND start_ns < $to_ns
)
SELECT
    worker_id,
    running,
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
ANTI JOIN claimed
    ON engine.worker_id = claimed.worker_id AND start_ns // 10000000000 = ten_seconds
    AND start_ns >= from_ns AND start_ns < to_ns
WHERE start_ns >= $from_ns AND start_ns < $to_ns AND forward_passes > 0 AND busy_ns IS NOT NULL
    AND end_ns > start_ns
GROUP BY worker_id, running, prefills, prefill_level, kv_level
ORDER BY worker_id, running, prefill_level NULLS FIRST, kv_level
