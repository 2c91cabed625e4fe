-- Which engines were polled from outside instead of recorded by a hook at each pass?
--
-- in   engine_steps
-- out  worker_id   VARCHAR  engine
-- out  rows        BIGINT   sampled rows
-- out  interval_s  DOUBLE   median length of a row, seconds: the polling interval
-- out  knows_busy  BOOLEAN  whether the engine counts its own time inside forward passes
-- grain: one row per engine with a sampled row
-- partition: worker
-- merge: concatenate
SELECT
    worker_id,
    count(*) AS rows,
    median(end_ns - start_ns) / 1e9 AS interval_s,
    bool_and(busy_ns IS NOT NULL) AS knows_busy
FROM engine_steps
WHERE source = 'sampled'
GROUP BY worker_id
ORDER BY worker_id
