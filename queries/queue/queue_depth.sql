-- How many samples were in each queue over time?
--
-- in   queue_depths
-- arg  origin_ns           BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns           BIGINT   length of a bucket
-- out  queue               VARCHAR  queue
-- out  bucket_start_ns     BIGINT   start of the bucket, UTC epoch
-- out  depth_mean_samples  DOUBLE   mean depth, weighted by time
-- out  depth_max_samples   BIGINT   maximum recorded depth
-- out  capacity_samples    BIGINT   capacity; NULL if not recorded or unbounded
-- grain: one row per queue and bucket with a recorded depth
-- partition: driver
WITH looks AS (
    SELECT queue, time_ns, depth, capacity,
        lead(time_ns) OVER (PARTITION BY queue ORDER BY time_ns) - time_ns AS held_ns
    FROM queue_depths
)
SELECT
    queue,
    $origin_ns + (time_ns - $origin_ns) // $bucket_ns * $bucket_ns AS bucket_start_ns,
    coalesce(sum(depth * held_ns) / nullif(sum(held_ns), 0)::DOUBLE, avg(depth)) AS depth_mean_samples,
    max(depth) AS depth_max_samples,
    max(capacity) AS capacity_samples
FROM looks
GROUP BY queue, bucket_start_ns
ORDER BY queue, bucket_start_ns
