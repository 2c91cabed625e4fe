-- How much longer than the mean is the longest sample of each group?
--
-- in   sample_totals
-- out  group_id            VARCHAR  group
-- out  samples             BIGINT   its samples
-- out  mean_output_tokens  DOUBLE   mean length, tokens
-- out  max_output_tokens   BIGINT   longest, tokens
-- out  tail_ratio          DOUBLE   longest over mean; 1 if all are equal, NULL without tokens
-- out  last_wait_s         DOUBLE   from the finish of the median sample to the last, seconds
-- out  censored_samples    BIGINT   samples whose length is unknown
-- grain: one row per group
-- partition: driver
SELECT
    group_id,
    count(*) AS samples,
    avg(output_tokens) AS mean_output_tokens,
    max(output_tokens) AS max_output_tokens,
    max(output_tokens) / nullif(avg(output_tokens), 0) AS tail_ratio,
    (max(finished_ns) - quantile_disc(finished_ns, 0.5)) / 1e9 AS last_wait_s,
    count(*) FILTER (finish_reason IN ('abort', 'error', 'unfinished')) AS censored_samples
FROM sample_totals
WHERE group_id IS NOT NULL
GROUP BY group_id
ORDER BY group_id
