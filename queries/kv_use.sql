-- How full was the KV cache of each engine over time?
--
-- in   engine_steps, workers
-- arg  origin_ns           BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns           BIGINT   length of a bucket
-- out  worker_id           VARCHAR  engine
-- out  bucket_start_ns     BIGINT   start of the bucket, UTC epoch
-- out  kv_used_mean_tokens DOUBLE   resident tokens, weighted by the time of the rows that start in the bucket
-- out  kv_used_max_tokens  BIGINT   most resident tokens
-- out  kv_capacity_tokens  BIGINT   what the cache can hold; NULL when not recorded
-- out  preemptions         BIGINT   preemptions in the bucket; NULL when not recorded
-- grain: one row per engine and bucket with a row that says how full the cache was
SELECT
    engine_steps.worker_id,
    $origin_ns + (start_ns - $origin_ns) // $bucket_ns * $bucket_ns AS bucket_start_ns,
    sum(kv_used_tokens * (end_ns - start_ns)) / sum(end_ns - start_ns)::DOUBLE AS kv_used_mean_tokens,
    max(kv_used_tokens) AS kv_used_max_tokens,
    any_value(workers.kv_capacity_tokens) AS kv_capacity_tokens,
    sum(preemptions)::BIGINT AS preemptions
FROM engine_steps
LEFT JOIN workers USING (worker_id)
WHERE end_ns > start_ns AND kv_used_tokens IS NOT NULL
GROUP BY engine_steps.worker_id, bucket_start_ns
ORDER BY engine_steps.worker_id, bucket_start_ns
