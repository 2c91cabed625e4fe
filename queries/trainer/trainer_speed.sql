-- How long does each trainer compute per step, and how long does it wait for the others?
--
-- in   train_steps, activities, workers
-- out  worker_id  VARCHAR  the trainer
-- out  steps      BIGINT   steps that it took part in
-- out  compute_s  DOUBLE   mean compute per step, seconds
-- out  barrier_s  DOUBLE   mean wait at a barrier per step, seconds
-- grain: one row per trainer
-- partition: driver
WITH computed AS (
    SELECT worker_id, count(DISTINCT step) AS steps, sum(end_ns - start_ns) AS compute_ns
    FROM train_steps
    GROUP BY worker_id
),
waited AS (
    SELECT worker_id, sum(end_ns - start_ns) AS barrier_ns
    FROM activities
    WHERE activity = 'wait' AND reason = 'barrier'
    GROUP BY worker_id
)
SELECT worker_id, steps, compute_ns / steps / 1e9 AS compute_s, coalesce(barrier_ns, 0) / steps / 1e9 AS barrier_s
FROM computed
JOIN workers USING (worker_id)
LEFT JOIN waited USING (worker_id)
WHERE role = 'trainer'
ORDER BY worker_id
