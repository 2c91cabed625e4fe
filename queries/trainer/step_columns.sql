-- Which steps share a column of a chart over time?
--
-- in   training_steps
-- arg  most_columns  BIGINT  maximum number of columns, at least 1
-- out  step          BIGINT  optimizer step
-- out  first_step    BIGINT  lowest step of its column
-- out  last_step     BIGINT  highest step of its column
-- out  start_ns      BIGINT  first start of a step in the column, UTC epoch
-- out  end_ns        BIGINT  start of the next column, UTC epoch; for the last one, the end of its last step
-- grain: one row per step
-- partition: driver
--
-- All columns hold the same number of steps, in order of start, except the last one.
WITH placed AS (
    SELECT step, start_ns, end_ns,
        (row_number() OVER (ORDER BY start_ns, step) - 1)
            // greatest(1, (count(*) OVER () + $most_columns - 1) // $most_columns) AS place
    FROM training_steps
),
columns_of AS (
    SELECT place, min(step) AS first_step, max(step) AS last_step, min(start_ns) AS start_ns, max(end_ns) AS last_end_ns
    FROM placed
    GROUP BY place
),
bounded AS (
    SELECT place, first_step, last_step, start_ns,
        coalesce(lead(start_ns) OVER (ORDER BY place), last_end_ns) AS end_ns
    FROM columns_of
)
SELECT placed.step, bounded.first_step, bounded.last_step, bounded.start_ns, bounded.end_ns
FROM placed
JOIN bounded USING (place)
ORDER BY bounded.start_ns, placed.step
