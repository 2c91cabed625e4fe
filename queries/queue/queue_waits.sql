-- How long had samples waited when they left the queue, over time?
--
-- in   deliveries
-- arg  most_columns     BIGINT  maximum number of buckets, at least 1
-- out  bucket_start_ns  BIGINT  start of the bucket, UTC epoch
-- out  bucket_end_ns    BIGINT  its end, exclusive
-- out  samples          BIGINT  deliveries with a recorded queue time
-- out  wait_p05_s       DOUBLE  5th percentile of the wait, seconds
-- out  wait_p50_s       DOUBLE  its median, seconds
-- out  wait_p95_s       DOUBLE  its 95th percentile, seconds
-- out  wait_max_s       DOUBLE  its maximum, seconds
-- grain: one row per bucket in which such a sample left the queue
-- partition: driver
--
-- Buckets have equal length and span the first to the last such sample.
WITH extent AS (
    SELECT min(taken_ns) AS first_ns, (max(taken_ns) - min(taken_ns)) // $most_columns + 1 AS bucket_ns
    FROM deliveries
    WHERE queued_ns IS NOT NULL
),
waits AS (
    SELECT (taken_ns - first_ns) // bucket_ns AS bucket, first_ns, bucket_ns, taken_ns - queued_ns AS wait_ns
    FROM deliveries
    CROSS JOIN extent
    WHERE queued_ns IS NOT NULL
)
SELECT
    first_ns + bucket * bucket_ns AS bucket_start_ns,
    first_ns + (bucket + 1) * bucket_ns AS bucket_end_ns,
    count(*) AS samples,
    quantile_cont(wait_ns, 0.05) / 1e9 AS wait_p05_s,
    quantile_cont(wait_ns, 0.5) / 1e9 AS wait_p50_s,
    quantile_cont(wait_ns, 0.95) / 1e9 AS wait_p95_s,
    max(wait_ns) / 1e9 AS wait_max_s
FROM waits
GROUP BY bucket, first_ns, bucket_ns
ORDER BY bucket
