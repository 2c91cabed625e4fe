-- What happened to the samples that left the queue, and were the dropped ones longer?
--
-- in   delivered_samples
-- out  outcome             VARCHAR  trained, dropped_stale, filtered or abandoned
-- out  samples             BIGINT   deliveries
-- out  tokens              BIGINT   response tokens, counted once per delivery
-- out  mean_output_tokens  DOUBLE   mean length, tokens; NULL if no such sample was recorded
-- out  length_bias_ratio   DOUBLE   mean length over the mean length of trained samples; NULL if none was trained
-- grain: one row per outcome
-- partition: driver
WITH lengths AS (
    SELECT outcome, count(*) AS samples, coalesce(sum(output_tokens), 0)::BIGINT AS tokens,
        avg(output_tokens) AS mean_output_tokens
    FROM delivered_samples
    GROUP BY outcome
)
SELECT
    outcome, samples, tokens, mean_output_tokens,
    mean_output_tokens / nullif(max(mean_output_tokens) FILTER (outcome = 'trained') OVER (), 0) AS length_bias_ratio
FROM lengths
ORDER BY array_position(['trained', 'dropped_stale', 'filtered', 'abandoned'], outcome), outcome
