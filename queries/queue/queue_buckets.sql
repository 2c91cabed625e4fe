-- How deep was each queue in each time bucket?
--
-- in   queue_depths
-- arg  origin_ns         BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns         BIGINT   length of a bucket
-- arg  end_ns            BIGINT   until when the last recorded depth is valid, UTC epoch
-- out  queue             VARCHAR  queue
-- out  bucket_start_ns   BIGINT   start of the bucket, UTC epoch
-- out  held_ns           BIGINT   time of the bucket for which a depth is known
-- out  depth_ns          BIGINT   depth in samples times that time
-- out  capacity_samples  BIGINT   capacity; NULL if not recorded or unbounded
-- grain: one row per queue and bucket with a known depth
-- partition: driver
--
-- A recorded depth is valid until the next one, also across buckets.
WITH looks AS (
    SELECT queue, depth, capacity, time_ns AS start_ns,
        lead(time_ns, 1, $end_ns) OVER (PARTITION BY queue ORDER BY time_ns) AS end_ns
    FROM queue_depths
),
pieces AS (
    SELECT queue, depth, capacity, start_ns, end_ns,
        unnest(range((start_ns - $origin_ns) // $bucket_ns, (end_ns - 1 - $origin_ns) // $bucket_ns + 1)) AS bucket
    FROM looks
    WHERE end_ns > start_ns
),
held AS (
    SELECT queue, depth, capacity, $origin_ns + bucket * $bucket_ns AS bucket_start_ns,
        least(end_ns, $origin_ns + (bucket + 1) * $bucket_ns)
            - greatest(start_ns, $origin_ns + bucket * $bucket_ns) AS held_ns
    FROM pieces
)
SELECT
    queue, bucket_start_ns,
    sum(held_ns)::BIGINT AS held_ns,
    sum(depth * held_ns)::BIGINT AS depth_ns,
    max(capacity) AS capacity_samples
FROM held
GROUP BY queue, bucket_start_ns
ORDER BY queue, bucket_start_ns
