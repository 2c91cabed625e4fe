-- How stale were the tokens that each step trained on?
--
-- in   token_staleness
-- out  step             BIGINT  optimizer step
-- out  tokens           BIGINT  response tokens
-- out  staleness_mean   DOUBLE  mean over tokens, versions
-- out  staleness_p50    BIGINT  median, versions
-- out  staleness_p95    BIGINT  95th percentile, versions
-- out  staleness_p99    BIGINT  99th percentile, versions
-- out  staleness_max    BIGINT  highest staleness, versions
-- out  in_flight_mean   DOUBLE  part accumulated while the sample was generated, versions
-- out  in_queue_mean    DOUBLE  part accumulated after the sample's newest token, versions
-- grain: one row per step
-- partition: driver
WITH by_staleness AS (
    SELECT step, staleness, sum(tokens) AS tokens,
        sum(in_flight_versions) AS in_flight, sum(in_queue_versions) AS in_queue
    FROM token_staleness
    WHERE step IS NOT NULL
    GROUP BY step, staleness
),
cumulative AS (
    SELECT step, staleness, tokens, in_flight, in_queue,
        sum(tokens) OVER (PARTITION BY step ORDER BY staleness) AS up_to_tokens,
        sum(tokens) OVER (PARTITION BY step) AS step_tokens
    FROM by_staleness
)
SELECT
    step,
    sum(tokens)::BIGINT AS tokens,
    sum(staleness * tokens) / sum(tokens)::DOUBLE AS staleness_mean,
    min(staleness) FILTER (up_to_tokens * 100 >= step_tokens * 50) AS staleness_p50,
    min(staleness) FILTER (up_to_tokens * 100 >= step_tokens * 95) AS staleness_p95,
    min(staleness) FILTER (up_to_tokens * 100 >= step_tokens * 99) AS staleness_p99,
    max(staleness) AS staleness_max,
    sum(in_flight) / sum(tokens)::DOUBLE AS in_flight_mean,
    sum(in_queue) / sum(tokens)::DOUBLE AS in_queue_mean
FROM cumulative
GROUP BY step
HAVING sum(tokens) > 0
ORDER BY step
