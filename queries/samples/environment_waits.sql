-- How long did samples wait outside their engine in the interval?
--
-- in   samples
-- arg  from_ns   BIGINT  start of the interval, UTC epoch
-- arg  to_ns     BIGINT  its end, exclusive
-- out  part      BIGINT  index of 1,000 equal parts of the segments, shortest waits first; one segment each if fewer
-- out  wait_s    DOUBLE  mean wait of the part, seconds; 0 for segments that did not wait
-- out  segments  BIGINT  segments in the part
-- grain: one row per part; no rows if no wait was recorded
-- partition: driver
--
-- Equal waits are in no particular order. This does not change the parts.
WITH waits AS (
    SELECT coalesce(env_wait_ns, 0) AS wait_ns
    FROM samples
    WHERE started_ns IS NOT NULL AND finished_ns >= $from_ns AND finished_ns < $to_ns
),
parts AS (
    SELECT wait_ns, ntile(1000) OVER (ORDER BY wait_ns) AS part
    FROM waits
    WHERE (SELECT max(wait_ns) FROM waits) > 0
)
SELECT part, avg(wait_ns) / 1e9 AS wait_s, count(*) AS segments
FROM parts
GROUP BY part
ORDER BY part
