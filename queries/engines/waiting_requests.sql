-- How many requests waited inside each engine over time?
--
-- in   engine_buckets
-- out  worker_id        VARCHAR  engine
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  waiting_mean     DOUBLE   waiting requests, weighted by the time of the rows that start in the bucket
-- out  waiting_max      INTEGER  maximum waiting requests
-- grain: one row per engine and bucket with at least one row
-- partition: worker
-- merge: concatenate
SELECT worker_id, bucket_start_ns, waiting_ns / row_ns::DOUBLE AS waiting_mean, waiting_max
FROM engine_buckets
WHERE is_timed
ORDER BY worker_id, bucket_start_ns
