-- How many samples were in each queue, on average, in the interval?
--
-- in   queue_depths
-- arg  from_ns             BIGINT   start of the interval, UTC epoch
-- arg  to_ns               BIGINT   its end, exclusive
-- out  queue               VARCHAR  queue
-- out  depth_mean_samples  DOUBLE   mean depth, weighted by time
-- grain: one row per queue with a depth that is known for a part of the interval
-- partition: driver
--
-- A recorded depth is valid until the next one; the last one until the end of the interval.
WITH looks AS (
    SELECT queue, depth, time_ns,
        lead(time_ns, 1, $to_ns) OVER (PARTITION BY queue ORDER BY time_ns) AS next_ns
    FROM queue_depths
),
held AS (
    SELECT queue, depth, least(next_ns, $to_ns) - greatest(time_ns, $from_ns) AS held_ns FROM looks
)
SELECT queue, sum(depth * held_ns) / sum(held_ns)::DOUBLE AS depth_mean_samples
FROM held
WHERE held_ns > 0
GROUP BY queue
ORDER BY queue
