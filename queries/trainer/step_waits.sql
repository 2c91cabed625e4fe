-- How long did the trainers wait for samples before each step?
--
-- in   train_steps, activities
-- out  step        BIGINT  optimizer step
-- out  wait_from_ns BIGINT start of the first wait, UTC epoch
-- out  wait_to_ns  BIGINT  end of the last wait, UTC epoch
-- out  wait_s      DOUBLE  waits of all trainers that ended between the last step's start and this one's, seconds
-- out  longest_wait_s DOUBLE longest single wait, seconds
-- grain: one row per step with a wait
-- partition: driver
WITH waits AS (
    SELECT worker_id, start_ns, end_ns FROM activities WHERE activity = 'wait' AND reason = 'samples'
),
starts AS (
    SELECT worker_id, step, start_ns AS step_start_ns FROM train_steps
),
placed AS (
    SELECT starts.step, waits.start_ns, waits.end_ns
    FROM waits
    ASOF JOIN starts ON waits.worker_id = starts.worker_id AND waits.end_ns <= starts.step_start_ns
)
SELECT
    step,
    min(start_ns) AS wait_from_ns,
    max(end_ns) AS wait_to_ns,
    sum(end_ns - start_ns) / 1e9 AS wait_s,
    max(end_ns - start_ns) / 1e9 AS longest_wait_s
FROM placed
GROUP BY step
ORDER BY step
