-- When was each delivered sample queued, taken and trained on, and what became of it?
--
-- in   deliveries, train_steps
-- out  sample_id         VARCHAR  sample
-- out  queued_ns         BIGINT   first entered a queue, UTC epoch; NULL if not recorded
-- out  taken_ns          BIGINT   first left one, UTC epoch
-- out  trained_ns        BIGINT   first end of a step that it was delivered to; without a step, when it was taken
-- out  trained_step      BIGINT   first step that trained on it; NULL if none did
-- out  trained_taken_ns  BIGINT   when it was first taken to be trained on; NULL if it was not
-- out  fate              VARCHAR  trained if it ever was, else dropped_stale, else filtered, else abandoned
-- grain: one row per sample with a delivery, in no order
-- partition: sample
-- merge: concatenate
WITH ends AS (
    SELECT step, max(end_ns) AS end_ns FROM train_steps GROUP BY step
)
SELECT
    sample_id,
    min(queued_ns) AS queued_ns,
    min(taken_ns) AS taken_ns,
    min(coalesce(end_ns, taken_ns)) AS trained_ns,
    min(step) FILTER (outcome = 'trained') AS trained_step,
    min(taken_ns) FILTER (outcome = 'trained') AS trained_taken_ns,
    (['trained', 'dropped_stale', 'filtered', 'abandoned'])[
        min(coalesce(array_position(['trained', 'dropped_stale', 'filtered'], outcome), 4))
    ] AS fate
FROM deliveries
LEFT JOIN ends USING (step)
GROUP BY sample_id
