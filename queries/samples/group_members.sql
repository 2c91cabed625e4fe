-- How long were the samples of the groups that started in the interval?
--
-- in   sample_totals
-- arg  from_ns        BIGINT   start of the interval, UTC epoch
-- arg  to_ns          BIGINT   its end, exclusive
-- arg  most_groups    BIGINT   maximum number of groups; the last ones are returned
-- out  group_id       VARCHAR  group
-- out  output_tokens  BIGINT   response length, tokens
-- out  is_ended       BOOLEAN  whether it finished or reached the length cap; if not, the length is a lower bound
-- grain: one row per member
-- partition: driver
WITH members AS (
    SELECT group_id, output_tokens, coalesce(started_ns, finished_ns) AS began_ns,
        coalesce(finish_reason, 'stop') NOT IN ('abort', 'error', 'unfinished') AS is_ended
    FROM sample_totals
    WHERE group_id IS NOT NULL
),
chosen AS (
    SELECT group_id
    FROM members
    GROUP BY group_id
    HAVING min(began_ns) >= $from_ns AND min(began_ns) < $to_ns
    ORDER BY min(began_ns) DESC, group_id
    LIMIT $most_groups
)
SELECT group_id, output_tokens, is_ended
FROM members
SEMI JOIN chosen USING (group_id)
ORDER BY group_id, output_tokens, is_ended
