-- Which samples did the trainers take first: those queued earlier or later, or those with older tokens?
--
-- in   delivered_samples
-- arg  from_ns             BIGINT  start of the interval, UTC epoch
-- arg  to_ns               BIGINT  its end, exclusive
-- arg  most_columns        BIGINT  maximum number of batches compared, at least 1; they are spread over the interval
-- out  earlier_left        BIGINT  pairs of a sample taken and one left behind in which the latter was queued earlier
-- out  later_left          BIGINT  the same in which it was queued later
-- out  older_left          BIGINT  the same in which its oldest token is older
-- out  younger_left        BIGINT  the same in which its oldest token is younger
-- out  older_group_left    BIGINT  the same in which the oldest token of its group is older
-- out  younger_group_left  BIGINT  the same in which the oldest token of its group is younger
-- grain: one row
-- partition: driver
--
-- Compares, for each batch, the samples that were in the queue when its first one was taken: those taken with it, and
-- those that are still there after its last one. Samples dropped as stale are left out.
WITH uses AS MATERIALIZED (
    SELECT queued_ns, taken_ns, step, outcome, oldest_version, coalesce(group_id, sample_id) AS group_id
    FROM delivered_samples
    WHERE is_recorded AND queued_ns IS NOT NULL AND outcome IN ('trained', 'filtered')
),
batches AS (
    SELECT step, min(taken_ns) AS first_ns, max(taken_ns) AS last_ns
    FROM uses
    WHERE outcome = 'trained' AND taken_ns >= $from_ns AND taken_ns < $to_ns
    GROUP BY step
),
spread AS (
    SELECT first_ns, last_ns
    FROM (SELECT *, row_number() OVER (ORDER BY step) - 1 AS place, count(*) OVER () AS batches FROM batches)
    WHERE place % ((batches + $most_columns - 1) // $most_columns) = 0
),
queued AS MATERIALIZED (
    SELECT first_ns, taken_ns <= last_ns AS is_taken, queued_ns, oldest_version, group_id
    FROM spread
    JOIN uses ON queued_ns < first_ns AND taken_ns >= first_ns
),
groups AS (
    SELECT group_id, min(oldest_version) AS group_version FROM uses SEMI JOIN queued USING (group_id) GROUP BY group_id
),
candidates AS (
    SELECT first_ns, is_taken, queued_ns, oldest_version, group_version FROM queued JOIN groups USING (group_id)
),
pairs AS (
    SELECT
        is_taken,
        count(*) FILTER (NOT is_taken) OVER by_time AS earlier,
        count(*) FILTER (NOT is_taken) OVER by_token AS older,
        count(*) FILTER (NOT is_taken) OVER by_group AS older_group,
        count(*) FILTER (NOT is_taken) OVER by_time_back AS later,
        count(*) FILTER (NOT is_taken) OVER by_token_back AS younger,
        count(*) FILTER (NOT is_taken) OVER by_group_back AS younger_group
    FROM candidates
    WINDOW
        by_time AS (PARTITION BY first_ns ORDER BY queued_ns RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
        by_token AS (PARTITION BY first_ns ORDER BY oldest_version RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
        by_group AS (PARTITION BY first_ns ORDER BY group_version RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
        by_time_back AS (PARTITION BY first_ns ORDER BY queued_ns RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING),
        by_token_back AS (
            PARTITION BY first_ns ORDER BY oldest_version RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ),
        by_group_back AS (
            PARTITION BY first_ns ORDER BY group_version RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        )
)
SELECT
    coalesce(sum(earlier), 0)::BIGINT AS earlier_left,
    coalesce(sum(later), 0)::BIGINT AS later_left,
    coalesce(sum(older), 0)::BIGINT AS older_left,
    coalesce(sum(younger), 0)::BIGINT AS younger_left,
    coalesce(sum(older_group), 0)::BIGINT AS older_group_left,
    coalesce(sum(younger_group), 0)::BIGINT AS younger_group_left
FROM pairs
WHERE is_taken
