-- How many of the generated response tokens were trained on, and what happened to the rest?
--
-- in   sample_totals, sample_uses
-- out  generated_tokens      BIGINT  tokens of all samples
-- out  trained_tokens        BIGINT  tokens of trained samples, each sample once
-- out  dropped_stale_tokens  BIGINT  tokens of samples dropped as stale and never trained on
-- out  filtered_tokens       BIGINT  tokens of samples filtered out and never trained on
-- out  abandoned_tokens      BIGINT  tokens of samples abandoned and never trained on
-- out  undelivered_tokens    BIGINT  tokens of samples that never left the queue or were still running
-- grain: one row; the parts add up to generated_tokens
-- partition: sample
-- merge: sum generated_tokens, trained_tokens, dropped_stale_tokens
-- merge: sum filtered_tokens, abandoned_tokens, undelivered_tokens
SELECT
    coalesce(sum(output_tokens), 0)::BIGINT AS generated_tokens,
    coalesce(sum(output_tokens) FILTER (fate = 'trained'), 0)::BIGINT AS trained_tokens,
    coalesce(sum(output_tokens) FILTER (fate = 'dropped_stale'), 0)::BIGINT AS dropped_stale_tokens,
    coalesce(sum(output_tokens) FILTER (fate = 'filtered'), 0)::BIGINT AS filtered_tokens,
    coalesce(sum(output_tokens) FILTER (fate = 'abandoned'), 0)::BIGINT AS abandoned_tokens,
    coalesce(sum(output_tokens) FILTER (fate IS NULL), 0)::BIGINT AS undelivered_tokens
FROM sample_totals
LEFT JOIN sample_uses USING (sample_id)
