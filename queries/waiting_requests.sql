-- How many requests waited inside each engine over time?
--
-- in   engine_steps
-- arg  origin_ns        BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns        BIGINT   length of a bucket
-- out  worker_id        VARCHAR  engine
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  waiting_mean     DOUBLE   waiting requests, weighted by the time of the rows that start in the bucket
-- out  waiting_max      INTEGER  most waiting requests
-- grain: one row per engine and bucket with a row in it
SELECT
    worker_id,
    $origin_ns + (start_ns - $origin_ns) // $bucket_ns * $bucket_ns AS bucket_start_ns,
    sum(waiting * (end_ns - start_ns)) / sum(end_ns - start_ns)::DOUBLE AS waiting_mean,
    max(waiting) AS waiting_max
FROM engine_steps
WHERE end_ns > start_ns
GROUP BY worker_id, bucket_start_ns
ORDER BY worker_id, bucket_start_ns
