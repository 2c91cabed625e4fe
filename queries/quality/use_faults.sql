-- How many samples were trained on without being recorded, and how many tokens more than once in a step?
--
-- in   delivered_samples
-- out  unrecorded_samples  BIGINT  samples delivered to a step, counted once per step, that were not recorded
-- out  repeated_tokens     BIGINT  response tokens of the second and further deliveries of a sample to a step
-- grain: one row
-- partition: sample
-- merge: sum unrecorded_samples, repeated_tokens
SELECT
    count_if(NOT is_recorded)::BIGINT AS unrecorded_samples,
    coalesce(sum(output_tokens * (deliveries - 1)), 0)::BIGINT AS repeated_tokens
FROM (
    SELECT bool_or(is_recorded) AS is_recorded, any_value(output_tokens) AS output_tokens, count(*) AS deliveries
    FROM delivered_samples
    WHERE outcome = 'trained'
    GROUP BY sample_id, step
)
