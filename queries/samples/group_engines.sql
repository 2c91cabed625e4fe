-- Were the members of a group sent to one engine or to several, in the interval?
--
-- in   samples
-- arg  from_ns            BIGINT  start of the interval, UTC epoch
-- arg  to_ns              BIGINT  its end, exclusive
-- out  groups             BIGINT  groups with at least two samples that started in the interval
-- out  one_engine_groups  BIGINT  of those, groups whose samples all started on one engine
-- out  engines            BIGINT  engines that any of them started on
-- grain: one row
-- partition: driver
WITH members AS (
    SELECT group_id, worker_id FROM samples
    WHERE group_id IS NOT NULL AND started_ns IS NOT NULL AND segment = 0
        AND started_ns >= $from_ns AND started_ns < $to_ns
),
spread AS (
    SELECT min(worker_id) = max(worker_id) AS is_on_one FROM members
    GROUP BY group_id
    HAVING count(*) > 1
)
SELECT
    count(*) AS groups,
    count(*) FILTER (is_on_one) AS one_engine_groups,
    (SELECT count(DISTINCT worker_id) FROM members) AS engines
FROM spread
