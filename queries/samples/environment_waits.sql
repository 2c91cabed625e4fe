-- How long did samples wait outside their engine in the stretch that is looked at?
--
-- in   samples
-- arg  from_ns   BIGINT  start of the stretch, UTC epoch
-- arg  to_ns     BIGINT  its end, not included
-- out  part      BIGINT  thousandth of the segments, shortest waits first; one each where they are fewer
-- out  wait_s    DOUBLE  their mean wait, seconds; 0 of those that did not wait
-- out  segments  BIGINT  segments in the part
-- grain: one row per part; none where no wait was recorded
WITH waits AS (
    SELECT coalesce(env_wait_ns, 0) AS wait_ns,
        ntile(1000) OVER (ORDER BY coalesce(env_wait_ns, 0), sample_id, segment) AS part
    FROM samples
    WHERE started_ns IS NOT NULL AND finished_ns >= $from_ns AND finished_ns < $to_ns
)
SELECT part, avg(wait_ns) / 1e9 AS wait_s, count(*) AS segments
FROM waits
WHERE (SELECT max(wait_ns) FROM waits) > 0
GROUP BY part
ORDER BY part
