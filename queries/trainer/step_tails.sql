-- How long did each step wait for its last tenth of samples?
--
-- in   delivered_samples
-- out  step              BIGINT  optimizer step
-- out  samples           BIGINT  samples trained in it
-- out  first_start_ns    BIGINT  earliest start of them, UTC epoch; NULL if not recorded
-- out  tail_start_ns     BIGINT  finish of the 90th-percentile sample, UTC epoch
-- out  last_finish_ns    BIGINT  finish of the last sample, UTC epoch
-- out  tail_s            DOUBLE  time between the two, seconds
-- out  max_tail_ratio    DOUBLE  longest over mean response length; NULL without tokens
-- grain: one row per step
-- partition: driver
SELECT
    step,
    count(*) AS samples,
    min(started_ns) AS first_start_ns,
    quantile_disc(finished_ns, 0.9) AS tail_start_ns,
    max(finished_ns) AS last_finish_ns,
    (max(finished_ns) - quantile_disc(finished_ns, 0.9)) / 1e9 AS tail_s,
    max(output_tokens) / nullif(avg(output_tokens), 0) AS max_tail_ratio
FROM delivered_samples
WHERE outcome = 'trained' AND step IS NOT NULL AND is_recorded
GROUP BY step
ORDER BY step
