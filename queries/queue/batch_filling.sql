-- Did the trainers take samples as they came, or a whole batch at once, and how many were queued meanwhile?
--
-- in   deliveries, queue_depths, training_steps
-- arg  from_ns              BIGINT  start of the interval, UTC epoch
-- arg  to_ns                BIGINT  its end, exclusive
-- out  batches              BIGINT  batches taken in the interval: what one worker took for one step
-- out  filled_batches       BIGINT  of those, batches that got a sample that was queued after their first one was taken
-- out  queued_mean_samples  DOUBLE  samples between entering and leaving the queue, mean over the interval; NULL if
--                                   not recorded for all
-- out  depths_of_others     BIGINT  depths in the interval that were recorded by workers that took no sample
-- grain: one row
-- partition: driver
--
-- A batch of which a part was taken during a step was not filled while its trainers waited, and does not count as
-- filled. Samples that never left the queue are in no mean.
WITH takings AS MATERIALIZED (
    SELECT worker_id, step, queued_ns, taken_ns, outcome FROM deliveries
),
batches AS (
    SELECT min(taken_ns) AS first_ns, max(taken_ns) AS last_ns, max(queued_ns) AS queued_ns
    FROM takings
    WHERE outcome = 'trained' AND step IS NOT NULL
    GROUP BY worker_id, step
    HAVING min(taken_ns) >= $from_ns AND min(taken_ns) < $to_ns
),
judged AS (
    SELECT
        coalesce(
            batches.queued_ns > first_ns
            AND batches.queued_ns <= last_ns
            AND coalesce(began.end_ns <= first_ns, true),
            false
        ) AS is_filled
    FROM batches
    ASOF LEFT JOIN training_steps AS began ON batches.last_ns > began.start_ns
)
SELECT
    (SELECT count(*) FROM judged) AS batches,
    (SELECT count(*) FILTER (is_filled) FROM judged) AS filled_batches,
    (
        SELECT
            if(
                count(*) = count(queued_ns),
                sum(greatest(0, least(taken_ns, $to_ns) - greatest(queued_ns, $from_ns))),
                NULL
            )
        FROM takings
        WHERE taken_ns >= $from_ns AND (queued_ns IS NULL OR queued_ns < $to_ns)
    ) / ($to_ns - $from_ns)::DOUBLE AS queued_mean_samples,
    (
        SELECT count(*)
        FROM queue_depths
        WHERE time_ns >= $from_ns AND time_ns < $to_ns AND worker_id NOT IN (SELECT worker_id FROM takings)
    ) AS depths_of_others
