-- How stale were the trained tokens over time, and where did the staleness accumulate?
--
-- in   token_staleness, step_columns
-- out  first_step      BIGINT  lowest step of the column
-- out  last_step       BIGINT  highest step of the column
-- out  start_ns        BIGINT  start of the column, UTC epoch
-- out  end_ns          BIGINT  end of the column, UTC epoch
-- out  tokens          BIGINT  response tokens trained in the column, counted once per use
-- out  staleness_mean  DOUBLE  mean over tokens, versions
-- out  staleness_p95   BIGINT  95th percentile, versions
-- out  staleness_max   BIGINT  highest staleness, versions
-- out  in_flight_mean  DOUBLE  part accumulated while the sample was generated, versions
-- out  in_queue_mean   DOUBLE  part accumulated after the sample's newest token, versions
-- grain: one row per column with a token of known staleness
-- partition: driver
WITH aged AS (
    SELECT first_step, last_step, start_ns, end_ns, staleness,
        sum(tokens) AS tokens, sum(in_flight_versions) AS in_flight, sum(in_queue_versions) AS in_queue
    FROM token_staleness
    JOIN step_columns USING (step)
    WHERE tokens > 0
    GROUP BY ALL
),
cumulative AS (
    SELECT first_step, last_step, start_ns, end_ns, staleness, tokens, in_flight, in_queue,
        sum(tokens) OVER (PARTITION BY start_ns, first_step ORDER BY staleness) AS up_to_tokens,
        sum(tokens) OVER (PARTITION BY start_ns, first_step) AS column_tokens
    FROM aged
)
SELECT
    first_step, last_step, start_ns, end_ns,
    sum(tokens)::BIGINT AS tokens,
    sum(staleness * tokens) / sum(tokens)::DOUBLE AS staleness_mean,
    min(staleness) FILTER (up_to_tokens * 100 >= column_tokens * 95) AS staleness_p95,
    max(staleness) AS staleness_max,
    sum(in_flight) / sum(tokens)::DOUBLE AS in_flight_mean,
    sum(in_queue) / sum(tokens)::DOUBLE AS in_queue_mean
FROM cumulative
GROUP BY first_step, last_step, start_ns, end_ns
ORDER BY start_ns, first_step
