-- How long did samples wait outside their engine in the interval?
--
-- in   sample_totals
-- arg  from_ns   BIGINT  start of the interval, UTC epoch
-- arg  to_ns     BIGINT  its end, exclusive
-- out  part      BIGINT  index of 1,000 equal parts of the samples, shortest waits first; one sample each if fewer
-- out  wait_s    DOUBLE  mean wait of the part, seconds; 0 for samples that did not wait
-- out  samples   BIGINT  samples in the part
-- grain: one row per part; no rows if no wait was recorded
-- partition: driver
--
-- Equal waits are in no particular order. This does not change the parts.
WITH waits AS (
    SELECT coalesce(outside_ns, 0) AS wait_ns
    FROM sample_totals
    WHERE started_ns IS NOT NULL AND finished_ns >= $from_ns AND finished_ns < $to_ns
),
parts AS (
    SELECT wait_ns, ntile(1000) OVER (ORDER BY wait_ns) AS part
    FROM waits
    WHERE (SELECT max(wait_ns) FROM waits) > 0
)
SELECT part, avg(wait_ns) / 1e9 AS wait_s, count(*) AS samples
FROM parts
GROUP BY part
ORDER BY part
