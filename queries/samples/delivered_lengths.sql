-- How long were the trained samples, and the others?
--
-- in   delivered_samples
-- arg  bins                BIGINT   maximum number of bins, at least 1
-- out  outcome             VARCHAR  trained, dropped_stale, filtered or abandoned
-- out  length_from_tokens  BIGINT   shortest length of the bin, tokens
-- out  length_to_tokens    BIGINT   longest length of the bin, tokens
-- out  samples             BIGINT   deliveries of samples in the bin
-- out  share_ratio         DOUBLE   share of the recorded samples with that outcome, 0..1
-- grain: one row per outcome and non-empty bin
-- partition: driver
WITH recorded AS (
    SELECT outcome, output_tokens FROM delivered_samples WHERE is_recorded
),
width AS (
    SELECT greatest(1, (max(output_tokens) + $bins) // $bins) AS bin_tokens FROM recorded
),
counted AS (
    SELECT outcome, output_tokens // bin_tokens AS bin, bin_tokens, count(*) AS samples
    FROM recorded
    CROSS JOIN width
    GROUP BY ALL
)
SELECT
    outcome,
    bin * bin_tokens AS length_from_tokens,
    (bin + 1) * bin_tokens - 1 AS length_to_tokens,
    samples,
    samples / sum(samples) OVER (PARTITION BY outcome)::DOUBLE AS share_ratio
FROM counted
ORDER BY array_position(['trained', 'dropped_stale', 'filtered', 'abandoned'], outcome), outcome, length_from_tokens
