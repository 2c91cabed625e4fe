-- How full was the KV cache of each engine over time?
--
-- in   engine_buckets, workers
-- out  worker_id           VARCHAR  engine
-- out  bucket_start_ns     BIGINT   start of the bucket, UTC epoch
-- out  kv_used_mean_tokens DOUBLE   resident tokens, weighted by the time of the rows that start in the bucket
-- out  kv_used_max_tokens  BIGINT   maximum resident tokens
-- out  kv_capacity_tokens  BIGINT   capacity of the cache; NULL if not recorded
-- out  preemptions         BIGINT   preemptions in the bucket; NULL if not recorded
-- grain: one row per engine and bucket with a row that records the KV cache use
-- partition: worker
-- merge: concatenate
SELECT
    engine_buckets.worker_id,
    bucket_start_ns,
    kv_token_ns / kv_row_ns AS kv_used_mean_tokens,
    kv_max_tokens AS kv_used_max_tokens,
    workers.kv_capacity_tokens,
    kv_preemptions AS preemptions
FROM engine_buckets
LEFT JOIN workers USING (worker_id)
WHERE is_timed AND kv_row_ns IS NOT NULL
ORDER BY engine_buckets.worker_id, bucket_start_ns
