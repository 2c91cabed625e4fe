-- How many tokens were delivered to one step more than once?
--
-- in   delivered_samples
-- out  tokens  BIGINT  response tokens of the second and further deliveries of a sample to a step
-- grain: one row
-- partition: sample
-- merge: sum tokens
SELECT coalesce(sum(output_tokens * (uses - 1)), 0)::BIGINT AS tokens
FROM (
    SELECT any_value(output_tokens) AS output_tokens, count(*) AS uses
    FROM delivered_samples
    WHERE outcome = 'trained'
    GROUP BY sample_id, step
)
