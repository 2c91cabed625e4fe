-- Did the trainers take samples as they came, or a whole batch at once, and how many were queued meanwhile?
--
-- in   deliveries, queue_depths, training_steps, train_steps, activities
-- arg  from_ns              BIGINT  start of the interval, UTC epoch
-- arg  to_ns                BIGINT  its end, exclusive
-- out  samples              BIGINT  samples of the batches begun in the interval: what a worker takes for a step
-- out  taken_on_arrival     BIGINT  of those, queued after the first one of their batch was taken, and then taken
--                                   within a tenth of the time from the first to the last one
-- out  queued_mean_samples  DOUBLE  samples between entering and leaving the queue, mean over the interval; NULL if
--                                   not recorded for all
-- out  depths_of_others     BIGINT  depths in the interval that were recorded by workers that took no sample
-- out  waited_for           BIGINT  samples of steps during which the worker that took them waited for samples
-- out  held_at_start        BIGINT  of those, taken when the step started: the first of the parts that it trains on
-- grain: one row
-- partition: driver
--
-- Trainers that wait for a whole batch take all of it at once. If a part of a batch was filtered, they wait only for
-- the rest and took most of it before. Samples taken during a step did not arrive while trainers waited. Samples that
-- never left the queue are not counted.
WITH takings AS MATERIALIZED (
    SELECT worker_id, step, queued_ns, taken_ns, outcome FROM deliveries
),
batches AS (
    SELECT worker_id, step, min(taken_ns) AS first_ns, max(taken_ns) AS last_ns, count(*) AS samples
    FROM takings
    WHERE outcome = 'trained' AND step IS NOT NULL
    GROUP BY worker_id, step
    HAVING min(taken_ns) >= $from_ns AND min(taken_ns) < $to_ns
),
filled AS (
    SELECT batches.worker_id, batches.step, first_ns, last_ns
    FROM batches
    ASOF LEFT JOIN training_steps AS began ON last_ns > began.start_ns
    WHERE last_ns > first_ns AND coalesce(began.end_ns <= first_ns, true)
),
own_steps AS (
    SELECT worker_id, step, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM train_steps GROUP BY worker_id, step
),
interrupted AS (
    SELECT DISTINCT own_steps.worker_id, step, own_steps.start_ns
    FROM activities AS waits
    ASOF JOIN own_steps ON waits.worker_id = own_steps.worker_id AND waits.end_ns <= own_steps.end_ns
    WHERE activity = 'wait' AND reason = 'samples' AND waits.start_ns >= own_steps.start_ns
        AND own_steps.start_ns >= $from_ns AND own_steps.start_ns < $to_ns
),
parts AS (
    SELECT count(*) AS waited_for, count(*) FILTER (taken_ns <= start_ns) AS held_at_start
    FROM takings
    JOIN interrupted USING (worker_id, step)
    WHERE outcome = 'trained'
)
SELECT
    (SELECT coalesce(sum(samples), 0)::BIGINT FROM batches) AS samples,
    (
        SELECT count(*)
        FROM takings
        JOIN filled USING (worker_id, step)
        WHERE
            outcome = 'trained'
            AND queued_ns > first_ns
            AND taken_ns >= queued_ns
            AND 10 * (taken_ns - queued_ns) <= last_ns - first_ns
    ) AS taken_on_arrival,
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
    ) AS depths_of_others,
    waited_for,
    held_at_start
FROM parts
