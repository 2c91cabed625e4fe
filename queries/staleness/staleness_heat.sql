-- How is the staleness of the trained tokens distributed over time?
--
-- in   token_staleness, step_columns
-- arg  bins            BIGINT  maximum number of staleness rows, at least 1
-- out  first_step      BIGINT  lowest step of the column
-- out  last_step       BIGINT  highest step of the column
-- out  start_ns        BIGINT  start of the column, UTC epoch
-- out  end_ns          BIGINT  end of the column, UTC epoch
-- out  staleness_from  BIGINT  lowest staleness of the row, versions
-- out  staleness_to    BIGINT  highest staleness of the row, versions
-- out  tokens          BIGINT  response tokens trained in the column at that staleness, counted once per use
-- out  share_ratio     DOUBLE  tokens over the tokens of the column, 0..1
-- grain: one row per column and non-empty row
-- partition: driver
--
-- Tokens without a recorded step have no time and are left out.
WITH aged AS (
    SELECT first_step, last_step, start_ns, end_ns, staleness, tokens
    FROM token_staleness
    JOIN step_columns USING (step)
    WHERE tokens > 0
),
rows_of AS (
    SELECT least(0, min(staleness)) AS least_staleness,
        greatest(1, (max(staleness) - least(0, min(staleness)) + $bins) // $bins) AS row_versions
    FROM aged
),
counted AS (
    SELECT first_step, last_step, start_ns, end_ns,
        least_staleness + (staleness - least_staleness) // row_versions * row_versions AS staleness_from,
        row_versions,
        sum(tokens)::BIGINT AS tokens
    FROM aged
    CROSS JOIN rows_of
    GROUP BY ALL
)
SELECT
    first_step, last_step, start_ns, end_ns, staleness_from,
    staleness_from + row_versions - 1 AS staleness_to,
    tokens,
    tokens / sum(tokens) OVER (PARTITION BY start_ns, first_step)::DOUBLE AS share_ratio
FROM counted
ORDER BY start_ns, first_step, staleness_from
