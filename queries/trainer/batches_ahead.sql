-- How many batches have the trainers prefetched at the start of a step, and how many steps share one, in the interval?
--
-- in   sample_uses, deliveries, training_steps
-- arg  from_ns        BIGINT  start of the interval, UTC epoch
-- arg  to_ns          BIGINT  its end, exclusive
-- out  samples        BIGINT  samples whose first step started in the interval
-- out  batches_ahead  DOUBLE  mean number of prefetched batches; NULL without samples
-- out  steps          BIGINT  steps with samples that started in the interval
-- out  batches        BIGINT  batches taken for them; steps whose samples were taken before the same middle of a step
--                             share one
-- grain: one row
-- partition: driver
--
-- For each sample, counts the steps that start after it left the queue and before its own step. The mean over samples
-- equals the mean over steps of the prefetched batches, for any batch size. A sample trained several times counts at
-- its first step. If a framework does not record when a sample left the queue, the delivery is recorded as its step
-- starts or later, which counts as 0. A batch is taken when the median of its samples is; the middle of a step is
-- furthest from the moments between steps at which batches are taken, whatever the clocks.
WITH began AS (
    SELECT step, start_ns, (start_ns + end_ns) // 2 AS middle_ns, row_number() OVER (ORDER BY step) AS place
    FROM training_steps
),
used AS MATERIALIZED (
    SELECT own.place, trained_taken_ns
    FROM sample_uses
    JOIN began AS own ON own.step = trained_step
    WHERE own.start_ns >= $from_ns AND own.start_ns < $to_ns
),
taken AS (
    SELECT place, quantile_disc(trained_taken_ns, 0.5) AS taken_ns FROM used GROUP BY place
)
SELECT
    (SELECT count(*) FROM used) AS samples,
    (
        SELECT avg(greatest(used.place - following.place, 0))
        FROM used
        ASOF LEFT JOIN began AS following ON trained_taken_ns < following.start_ns
    ) AS batches_ahead,
    (
        SELECT count(*)
        FROM began
        SEMI JOIN deliveries ON deliveries.step = began.step AND outcome = 'trained'
        WHERE start_ns >= $from_ns AND start_ns < $to_ns
    ) AS steps,
    (
        SELECT count(DISTINCT least(taken.place, coalesce(ending.place, taken.place)))
        FROM taken
        ASOF LEFT JOIN began AS ending ON taken_ns < ending.middle_ns
    ) AS batches
