-- Which metrics did the framework itself report, and what were their values?
--
-- in   reported
-- out  worker_id  VARCHAR  worker whose framework reported them
-- out  name       VARCHAR  the framework's name of the metric; its unit is the framework's
-- out  rows       BIGINT   times that it was reported
-- out  mean       DOUBLE   mean of the values
-- out  min        DOUBLE   minimum
-- out  max        DOUBLE   maximum
-- out  last       DOUBLE   the last one
-- grain: one row per worker and name
-- partition: worker
-- merge: concatenate
SELECT
    worker_id,
    name,
    count(*) AS rows,
    avg(value ORDER BY value) AS mean, -- a fixed order gives the same last digit on any number of threads
    min(value) AS min,
    max(value) AS max,
    arg_max(value, (time_ns, step)) AS last
FROM reported
WHERE isfinite(value)
GROUP BY worker_id, name
ORDER BY worker_id, name
