-- How many requests ran together in each engine over time?
--
-- in   engine_steps
-- arg  origin_ns        BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns        BIGINT   length of a bucket
-- out  worker_id        VARCHAR  engine
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  running_mean     DOUBLE   running requests, weighted by the time of the rows that start in the bucket
-- out  running_max      INTEGER  most running requests
-- out  row_ns           BIGINT   time of those rows; less than the bucket when the engine stood still
-- grain: one row per engine and bucket with a row in it
SELECT
    worker_id,
    $origin_ns + (start_ns - $origin_ns) // $bucket_ns * $bucket_ns AS bucket_start_ns,
    sum(running * (end_ns - start_ns)) / sum(end_ns - start_ns)::DOUBLE AS running_mean,
    max(running) AS running_max,
    sum(end_ns - start_ns)::BIGINT AS row_ns
FROM engine_steps
WHERE end_ns > start_ns
GROUP BY worker_id, bucket_start_ns
ORDER BY worker_id, bucket_start_ns
