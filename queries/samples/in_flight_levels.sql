-- How many samples were in flight until the trainers took them, and until they had trained on them, in the interval?
--
-- in   samples, sample_totals, sample_uses
-- arg  from_ns       BIGINT  start of the interval, UTC epoch
-- arg  to_ns         BIGINT  its end, exclusive
-- out  taken_mean    DOUBLE  samples between first schedule and leaving the queue, mean over the interval; NULL without
--                            deliveries
-- out  taken_high    BIGINT  samples between submission and leaving the queue: exceeded for at most 1% of the interval
-- out  trained_high  BIGINT  the same until the end of the step that trained on them
-- grain: one row
-- partition: driver
--
-- A finished sample without a delivery is still queued at the end if it was finished so late that others like it were;
-- else it counts until its last token.
WITH begun AS (
    SELECT
        sample_id,
        coalesce(submitted_ns, started_ns, finished_ns) AS submitted_ns,
        coalesce(started_ns, finished_ns) AS started_ns,
        finished_ns,
        coalesce(finish_reason, 'stop') IN ('abort', 'error', 'unfinished') AS is_cut
    FROM sample_totals
    WHERE segments = 1
    UNION ALL
    SELECT
        sample_id,
        min(coalesce(submitted_ns, started_ns, finished_ns)),
        min(coalesce(started_ns, submitted_ns, finished_ns)),
        max(finished_ns),
        coalesce(arg_max(finish_reason, segment), 'stop') IN ('abort', 'error', 'unfinished')
    FROM samples
    SEMI JOIN (SELECT sample_id FROM sample_totals WHERE segments > 1) AS resumed USING (sample_id)
    GROUP BY sample_id
),
lives AS MATERIALIZED (
    SELECT begun.submitted_ns, started_ns, finished_ns, is_cut, taken_ns, trained_ns
    FROM begun
    LEFT JOIN sample_uses USING (sample_id)
),
late AS (
    SELECT max(taken_ns) - coalesce(quantile_cont(taken_ns - finished_ns, 0.99), 0)::BIGINT AS from_ns
    FROM lives
    WHERE taken_ns IS NOT NULL
),
spans AS (
    SELECT
        submitted_ns, started_ns,
        coalesce(taken_ns, if(finished_ns >= late.from_ns AND NOT is_cut, $to_ns, finished_ns)) AS taken_ns,
        coalesce(trained_ns, if(finished_ns >= late.from_ns AND NOT is_cut, $to_ns, finished_ns)) AS trained_ns
    FROM lives
    CROSS JOIN late
),
changes AS (
    SELECT submitted_ns AS at_ns, 1 AS taken, 1 AS trained FROM spans
    UNION ALL
    SELECT greatest(taken_ns, submitted_ns) AS left_ns, -count(*), 0 FROM spans GROUP BY left_ns
    UNION ALL
    SELECT greatest(trained_ns, taken_ns, submitted_ns) AS left_ns, 0, -count(*) FROM spans GROUP BY left_ns
),
levels AS (
    -- changes at the same time all get the level after the last of them, and only the last has a duration
    SELECT
        sum(taken) OVER by_time AS taken,
        sum(trained) OVER by_time AS trained,
        greatest(at_ns, $from_ns) AS start_ns,
        least(lead(at_ns, 1, $to_ns) OVER by_time, $to_ns) AS end_ns
    FROM changes
    WINDOW by_time AS (ORDER BY at_ns)
),
held AS (
    SELECT taken, trained, sum(end_ns - start_ns) AS held_ns
    FROM levels
    WHERE end_ns > start_ns
    GROUP BY taken, trained
),
above AS (
    SELECT until, level,
        sum(sum(held_ns)) OVER (PARTITION BY until ORDER BY level DESC) AS held_ns,
        sum(sum(held_ns)) OVER (PARTITION BY until) AS all_ns
    FROM (
        SELECT 'taken' AS until, taken AS level, held_ns FROM held
        UNION ALL SELECT 'trained', trained, held_ns FROM held
    )
    GROUP BY until, level
)
SELECT
    (
        SELECT sum(greatest(0, least(taken_ns, $to_ns) - greatest(started_ns, $from_ns)))
        FROM spans
        WHERE EXISTS (SELECT 1 FROM sample_uses)
    ) / ($to_ns - $from_ns)::DOUBLE AS taken_mean,
    (max(level) FILTER (until = 'taken' AND 100 * held_ns > all_ns))::BIGINT AS taken_high,
    (max(level) FILTER (until = 'trained' AND 100 * held_ns > all_ns))::BIGINT AS trained_high
FROM above
