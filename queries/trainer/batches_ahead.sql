-- How many batches have the trainers prefetched at the start of a step, in the interval?
--
-- in   sample_uses, training_steps
-- arg  from_ns        BIGINT  start of the interval, UTC epoch
-- arg  to_ns          BIGINT  its end, exclusive
-- out  samples        BIGINT  samples whose first step started in the interval
-- out  batches_ahead  DOUBLE  mean number of prefetched batches; NULL without samples
-- grain: one row
-- partition: driver
--
-- For each sample, counts the steps that start after it left the queue and before its own step. The mean over samples
-- equals the mean over steps of the prefetched batches, for any batch size. A sample trained several times counts at
-- its first step. If a framework does not record when a sample left the queue, the delivery is recorded as its step
-- starts or later, which counts as 0.
WITH began AS (
    SELECT step, start_ns, row_number() OVER (ORDER BY step) AS place FROM training_steps
)
SELECT count(*) AS samples, avg(greatest(own.place - following.place, 0)) AS batches_ahead
FROM sample_uses
JOIN began AS own ON own.step = trained_step
ASOF LEFT JOIN began AS following ON trained_taken_ns < following.start_ns
WHERE own.start_ns >= $from_ns AND own.start_ns < $to_ns
