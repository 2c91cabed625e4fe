-- How many requests ran together in each engine over time?
--
-- in   engine_buckets
-- out  worker_id        VARCHAR  engine
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  running_mean     DOUBLE   running requests, weighted by the time of the rows that start in the bucket
-- out  running_max      INTEGER  maximum running requests
-- out  row_ns           BIGINT   time of those rows; less than the bucket if the engine was idle
-- grain: one row per engine and bucket with at least one row
-- partition: worker
-- merge: concatenate
SELECT worker_id, bucket_start_ns, running_ns / row_ns::DOUBLE AS running_mean, running_max, row_ns
FROM engine_buckets
WHERE is_timed
ORDER BY worker_id, bucket_start_ns
