-- How fast did each engine decode, and at what batch size?
--
-- in   engine_buckets, workers
-- out  worker_id            VARCHAR  engine
-- out  decode_tokens        BIGINT   tokens produced
-- out  row_s                DOUBLE   time of its rows, seconds
-- out  tokens_per_s         DOUBLE   tokens produced per second of its rows
-- out  running_mean         DOUBLE   running requests, weighted by time
-- out  running_max          INTEGER  maximum running requests
-- out  max_running          INTEGER  limit on running requests; NULL if not recorded
-- out  waiting_mean         DOUBLE   waiting requests, weighted by time
-- out  pass_per_request_s   DOUBLE   busy time per pass and running request, seconds; comparable between equal engines
-- out  kv_full_s            DOUBLE   time in which its KV cache was at least 90% full, seconds; NULL if not recorded
-- out  kv_full_running_mean DOUBLE   running requests in that time; NULL without any
-- out  kv_full_waiting_mean DOUBLE   waiting requests in that time; NULL without any
-- grain: one row per engine
-- partition: worker
-- merge: concatenate
WITH buckets AS (
    SELECT
        engine_buckets.*,
        workers.max_running,
        kv_token_ns / kv_row_ns >= 0.9 * workers.kv_capacity_tokens AS is_full
    FROM engine_buckets
    LEFT JOIN workers USING (worker_id)
    WHERE is_timed
)
SELECT
    worker_id,
    sum(decode_tokens)::BIGINT AS decode_tokens,
    sum(row_ns) / 1e9 AS row_s,
    sum(decode_tokens) / (sum(row_ns) / 1e9) AS tokens_per_s,
    sum(running_ns) / sum(row_ns)::DOUBLE AS running_mean,
    max(running_max) AS running_max,
    any_value(max_running) AS max_running,
    sum(waiting_ns) / sum(row_ns)::DOUBLE AS waiting_mean,
    sum(busy_ns) / nullif(sum(running_passes), 0) / 1e9 AS pass_per_request_s,
    if(count(is_full) = 0, NULL, coalesce(sum(row_ns) FILTER (is_full), 0) / 1e9) AS kv_full_s,
    sum(running_ns) FILTER (is_full) / sum(row_ns) FILTER (is_full)::DOUBLE AS kv_full_running_mean,
    sum(waiting_ns) FILTER (is_full) / sum(row_ns) FILTER (is_full)::DOUBLE AS kv_full_waiting_mean
FROM buckets
GROUP BY worker_id
ORDER BY worker_id
