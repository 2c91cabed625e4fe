-- How long did the samples of each step wait in the queue?
--
-- in   deliveries
-- out  step              BIGINT  optimizer step; NULL if never trained
-- out  outcome           VARCHAR trained, dropped_stale, filtered or abandoned
-- out  samples           BIGINT  deliveries with a recorded queue time
-- out  queue_mean_s      DOUBLE  mean time in the queue, seconds
-- out  queue_p95_s       DOUBLE  its 95th percentile, seconds
-- out  queue_max_s       DOUBLE  its maximum, seconds
-- grain: one row per step and outcome
-- partition: driver
SELECT
    step,
    outcome,
    count(*) AS samples,
    avg(taken_ns - queued_ns) / 1e9 AS queue_mean_s,
    quantile_cont(taken_ns - queued_ns, 0.95) / 1e9 AS queue_p95_s,
    max(taken_ns - queued_ns) / 1e9 AS queue_max_s
FROM deliveries
WHERE queued_ns IS NOT NULL
GROUP BY step, outcome
ORDER BY step NULLS LAST, outcome
