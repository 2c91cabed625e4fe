-- How many steps' batches do the trainers hold besides its own when they begin a step, in the stretch looked at?
--
-- in   deliveries, training_steps
-- arg  from_ns        BIGINT  start of the stretch, UTC epoch
-- arg  to_ns          BIGINT  its end, not included
-- out  samples        BIGINT  samples whose first step began in the stretch
-- out  batches_ahead  DOUBLE  steps that began after a sample was taken and before its own, mean; NULL without samples
-- grain: one row
--
-- A step that holds a batch ahead begins between the taking of each of its samples and their own step: so the mean over
-- samples is the mean over steps of what is held, in batches, whatever their size. What is trained on several times
-- counts with the first. Where a framework does not say when it took a sample, that is when it told of it, which is as
-- its step begins or later: 0.
WITH began AS (
    SELECT step, start_ns, row_number() OVER (ORDER BY step) AS place FROM training_steps
),
used AS (
    SELECT sample_id, min(taken_ns) AS taken_ns, min(step) AS step
    FROM deliveries
    WHERE outcome = 'trained'
    GROUP BY sample_id
)
SELECT count(*) AS samples, avg(greatest(own.place - following.place, 0)) AS batches_ahead
FROM used
JOIN began AS own ON own.step = used.step
ASOF LEFT JOIN began AS following ON used.taken_ns < following.start_ns
WHERE own.start_ns >= $from_ns AND own.start_ns < $to_ns
