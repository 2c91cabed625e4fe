-- What did each engine of the policy do in each time bucket?
--
-- in   engine_cells, workers
-- arg  origin_ns       BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns       BIGINT   length of a bucket
-- out  worker_id       VARCHAR  engine
-- out  bucket_start_ns BIGINT   start of the bucket, UTC epoch
-- out  is_timed        BOOLEAN  true for rows that end after their start, false for the invalid others
-- out  row_ns          BIGINT   time of the rows that start in the bucket
-- out  busy_ns         BIGINT   time inside forward passes; NULL if no row records it
-- out  decode_tokens   BIGINT   tokens produced
-- out  running_ns      BIGINT   running requests times the time of the row
-- out  running_passes  BIGINT   running requests times forward passes; NULL if no row counts them
-- out  running_max     INTEGER  maximum running requests
-- out  waiting_ns      BIGINT   waiting requests times the time of the row
-- out  waiting_max     INTEGER  maximum waiting requests
-- out  kv_row_ns       BIGINT   time of the rows that record the KV cache use; NULL if none does
-- out  kv_token_ns     DOUBLE   tokens resident in the cache times the time of the row
-- out  kv_max_tokens   BIGINT   maximum resident tokens
-- out  kv_preemptions  BIGINT   preemptions in the rows that record the KV cache use; NULL if not recorded
-- grain: one row per engine, bucket with at least one row and is_timed
-- partition: worker
-- merge: concatenate
SELECT
    worker_id,
    $origin_ns + (first_ns - $origin_ns) // $bucket_ns * $bucket_ns AS bucket_start_ns,
    is_timed,
    sum(row_ns)::BIGINT AS row_ns,
    sum(busy_ns)::BIGINT AS busy_ns,
    sum(decode_tokens)::BIGINT AS decode_tokens,
    sum(running_ns)::BIGINT AS running_ns,
    sum(running_passes)::BIGINT AS running_passes,
    max(running_max) AS running_max,
    sum(waiting_ns)::BIGINT AS waiting_ns,
    max(waiting_max) AS waiting_max,
    sum(kv_row_ns)::BIGINT AS kv_row_ns,
    sum(kv_token_ns)::DOUBLE AS kv_token_ns,
    max(kv_max_tokens) AS kv_max_tokens,
    sum(kv_preemptions)::BIGINT AS kv_preemptions
FROM engine_cells
ANTI JOIN (SELECT worker_id FROM workers WHERE role = 'auxiliary') AS auxiliary USING (worker_id)
GROUP BY worker_id, bucket_start_ns, is_timed
ORDER BY worker_id, bucket_start_ns, is_timed
