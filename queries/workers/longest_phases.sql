-- What is the longest phase of each kind that a worker of each role has ended?
--
-- in   worker_extents, activities, train_steps, weight_updates
-- out  role        VARCHAR  role
-- out  doing       VARCHAR  an activity, train, or publish, transfer or apply of weights
-- out  reason      VARCHAR  reason for waiting; NULL for other phases
-- out  longest_ns  BIGINT   length of the longest
-- grain: one row per role and kind of phase
-- partition: worker
-- merge: max longest_ns
WITH phases AS (
    SELECT worker_id, 'train' AS doing, NULL AS reason, end_ns - start_ns AS phase_ns FROM train_steps
    UNION ALL SELECT worker_id, activity, reason, end_ns - start_ns FROM activities
    UNION ALL SELECT worker_id, phase, NULL, end_ns - start_ns FROM weight_updates
)
SELECT role, doing, reason, max(phase_ns) AS longest_ns
FROM phases
JOIN worker_extents USING (worker_id)
GROUP BY role, doing, reason
ORDER BY role, doing, reason
