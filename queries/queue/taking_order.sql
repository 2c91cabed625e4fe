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
    -- the first batch after a sample was queued tells cheaply whether any batch began while it was queued
    SELECT spread.first_ns, taken_ns <= last_ns AS is_taken, queued_ns, oldest_version, group_id
    FROM (SELECT uses.* FROM uses ASOF JOIN spread ON queued_ns < first_ns WHERE taken_ns >= first_ns) AS held
    JOIN spread ON queued_ns < spread.first_ns AND taken_ns >= spread.first_ns
),
groups AS (
    SELECT group_id, min(oldest_version) AS group_version FROM uses SEMI JOIN queued USING (group_id) GROUP BY group_id
),
candidates AS (
    SELECT first_ns, is_taken, queued_ns, oldest_version, group_version FROM queued JOIN groups USING (group_id)
),
ranked AS (
    SELECT
        kind,
        count(*) FILTER (is_taken) AS taken,
        count(*) FILTER (NOT is_taken) AS same_left,
        sum(count(*) FILTER (NOT is_taken)) OVER (
            PARTITION BY first_ns, kind ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS up_to_left,
        sum(count(*) FILTER (NOT is_taken)) OVER (PARTITION BY first_ns, kind) AS all_left
    FROM candidates UNPIVOT (place FOR kind IN (queued_ns, oldest_version, group_version))
    GROUP BY first_ns, kind, place
),
pairs AS (
    SELECT kind, taken * (up_to_left - same_left) AS before, taken * (all_left - up_to_left) AS after FROM ranked
)
SELECT
    coalesce(sum(before) FILTER (kind = 'queued_ns'), 0)::BIGINT AS earlier_left,
    coalesce(sum(after) FILTER (kind = 'queued_ns'), 0)::BIGINT AS later_left,
    coalesce(sum(before) FILTER (kind = 'oldest_version'), 0)::BIGINT AS older_left,
    coalesce(sum(after) FILTER (kind = 'oldest_version'), 0)::BIGINT AS younger_left,
    coalesce(sum(before) FILTER (kind = 'group_version'), 0)::BIGINT AS older_group_left,
    coalesce(sum(after) FILTER (kind = 'group_version'), 0)::BIGINT AS younger_group_left
FROM pairs
