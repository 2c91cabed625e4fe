-- How long were the responses, and how many were cut short?
--
-- in   sample_totals
-- arg  bins               BIGINT  maximum number of bins, at least 1
-- out  length_from_tokens BIGINT  shortest length of the bin, tokens
-- out  length_to_tokens   BIGINT  longest length of the bin, tokens
-- out  finished_samples   BIGINT  samples that finished on their own
-- out  capped_samples     BIGINT  samples that reached the length cap
-- out  censored_samples   BIGINT  samples aborted, failed or still running: their length is a lower bound
-- grain: one row per non-empty bin
-- partition: driver
WITH width AS (
    SELECT greatest(1, (max(output_tokens) + $bins) // $bins) AS bin_tokens FROM sample_totals
)
SELECT
    output_tokens // bin_tokens * bin_tokens AS length_from_tokens,
    (output_tokens // bin_tokens + 1) * bin_tokens - 1 AS length_to_tokens,
    count(*) FILTER (coalesce(finish_reason, 'stop') NOT IN ('length', 'abort', 'error', 'unfinished'))
        AS finished_samples,
    count(*) FILTER (finish_reason = 'length') AS capped_samples,
    count(*) FILTER (finish_reason IN ('abort', 'error', 'unfinished')) AS censored_samples
FROM sample_totals
CROSS JOIN width
GROUP BY length_from_tokens, length_to_tokens
ORDER BY length_from_tokens
