-- How many samples were in flight until the trainers took them, and until they had trained on them, in the interval?
--
-- in   samples, deliveries, train_steps
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
WITH ends AS (
    SELECT step, max(end_ns) AS end_ns FROM train_steps GROUP BY step
),
uses AS (
    SELECT sample_id, min(taken_ns) AS taken_ns, min(coalesce(end_ns, taken_ns)) AS trained_ns
    FROM deliveries
    LEFT JOIN ends USING (step)
    GROUP BY sample_id
),
begun AS (
    SELECT
        sample_id,
        min(coalesce(submitted_ns, started_ns, finished_ns)) AS submitted_ns,
        min(coalesce(started_ns, submitted_ns, finished_ns)) AS started_ns,
        max(finished_ns) AS finished_ns,
        coalesce(arg_max(finish_reason, segment), 'stop') IN ('abort', 'error', 'unfinished') AS is_cut
    FROM samples
    GROUP BY sample_id
),
late AS (
    SELECT max(taken_ns) - coalesce(quantile_cont(taken_ns - finished_ns, 0.99), 0)::BIGINT AS from_ns
    FROM uses JOIN begun USING (sample_id)
),
spans AS (
    SELECT
        submitted_ns, started_ns,
        coalesce(taken_ns, if(finished_ns >= late.from_ns AND NOT is_cut, $to_ns, finished_ns)) AS taken_ns,
        coalesce(trained_ns, if(finished_ns >= late.from_ns AND NOT is_cut, $to_ns, finished_ns)) AS trained_ns
    FROM begun
    LEFT JOIN uses USING (sample_id)
    CROSS JOIN late
),
changes AS (
    SELECT 'taken' AS until, submitted_ns AS at_ns, 1 AS change FROM spans
    UNION ALL SELECT 'taken', greatest(taken_ns, submitted_ns), -1 FROM spans
    UNION ALL SELECT 'trained', submitted_ns, 1 FROM spans
    UNION ALL SELECT 'trained', greatest(trained_ns, taken_ns, submitted_ns), -1 FROM spans
),
moments AS (
    SELECT until, at_ns, sum(change) AS change FROM changes GROUP BY until, at_ns
),
levels AS (
    SELECT until,
        sum(change) OVER (PARTITION BY until ORDER BY at_ns) AS level,
        greatest(at_ns, $from_ns) AS start_ns,
        least(lead(at_ns, 1, $to_ns) OVER (PARTITION BY until ORDER BY at_ns), $to_ns) AS end_ns
    FROM moments
),
above AS (
    SELECT until, level,
        sum(sum(end_ns - start_ns)) OVER (PARTITION BY until ORDER BY level DESC) AS held_ns,
        sum(sum(end_ns - start_ns)) OVER (PARTITION BY until) AS all_ns
    FROM levels
    WHERE end_ns > start_ns
    GROUP BY until, level
)
SELECT
    (
        SELECT sum(greatest(0, least(taken_ns, $to_ns) - greatest(started_ns, $from_ns)))
        FROM spans
        WHERE EXISTS (SELECT 1 FROM uses)
    ) / ($to_ns - $from_ns)::DOUBLE AS taken_mean,
    (max(level) FILTER (until = 'taken' AND 100 * held_ns > all_ns))::BIGINT AS taken_high,
    (max(level) FILTER (until = 'trained' AND 100 * held_ns > all_ns))::BIGINT AS trained_high
FROM above
