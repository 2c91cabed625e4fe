-- How long were the members of the groups that began in the stretch that is looked at?
--
-- in   sample_totals
-- arg  from_ns        BIGINT   start of the stretch, UTC epoch
-- arg  to_ns          BIGINT   its end, not included
-- arg  most_groups    BIGINT   the last of the groups are answered, so many at most
-- out  group_id       VARCHAR  group
-- out  output_tokens  BIGINT   response length, tokens
-- out  is_ended       BOOLEAN  whether it ended, by itself or at the cap; else its length is at least that
-- grain: one row per member
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
