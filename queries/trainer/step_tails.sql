-- How long did each step wait for its last tenth of samples, and did the engines run others meanwhile?
--
-- in   delivered_samples, samples, engine_steps, workers
-- out  step              BIGINT  optimizer step
-- out  samples           BIGINT  samples trained in it
-- out  first_start_ns    BIGINT  earliest start of them, UTC epoch; NULL if not recorded
-- out  tail_start_ns     BIGINT  finish of the 90th-percentile sample, UTC epoch
-- out  last_finish_ns    BIGINT  finish of the last sample, UTC epoch
-- out  tail_s            DOUBLE  time between the two, seconds
-- out  max_tail_ratio    DOUBLE  longest over mean response length; NULL without tokens
-- out  running_before    BIGINT  samples of any step that ran until the first of these finished; NULL if not known
-- out  running_in_tail   BIGINT  samples of any step that ran when the tail began; NULL if not known
-- grain: one row per step
-- partition: driver
-- Where no sample has a start, the batches of the engines tell how many ran; a short pause is part of a batch.
WITH tails AS (
    SELECT
        step,
        count(*) AS samples,
        min(started_ns) AS first_start_ns,
        min(finished_ns) AS first_finish_ns,
        quantile_disc(finished_ns, 0.9) AS tail_start_ns,
        max(finished_ns) AS last_finish_ns,
        max(output_tokens) / nullif(avg(output_tokens), 0) AS max_tail_ratio
    FROM delivered_samples
    WHERE outcome = 'trained' AND step IS NOT NULL AND is_recorded
    GROUP BY step
),
batches AS (
    SELECT running, start_ns, end_ns,
        lead(start_ns) OVER (PARTITION BY worker_id ORDER BY start_ns) AS next_ns
    FROM policy_rows()
    WHERE NOT EXISTS (SELECT 1 FROM samples WHERE started_ns IS NOT NULL)
),
changes AS (
    -- order of events at the same time: readings before the change, the change, readings after it
    SELECT started_ns AS at_ns, 1 AS place, 1 AS change, NULL AS step FROM samples WHERE started_ns IS NOT NULL
    UNION ALL SELECT finished_ns, 1, -1, NULL FROM samples WHERE started_ns IS NOT NULL
    UNION ALL SELECT start_ns, 1, running, NULL FROM batches
    UNION ALL SELECT if(next_ns - end_ns <= end_ns - start_ns, next_ns, end_ns), 1, -running, NULL FROM batches
    UNION ALL SELECT first_finish_ns, 0, NULL, step FROM tails
    UNION ALL SELECT tail_start_ns, 2, NULL, step FROM tails
),
levels AS (
    SELECT step, place,
        (sum(change) OVER (ORDER BY at_ns, place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))::BIGINT AS running
    FROM changes
    QUALIFY step IS NOT NULL
)
SELECT
    step,
    samples,
    first_start_ns,
    tail_start_ns,
    last_finish_ns,
    (last_finish_ns - tail_start_ns) / 1e9 AS tail_s,
    max_tail_ratio,
    before.running AS running_before,
    in_tail.running AS running_in_tail
FROM tails
JOIN levels AS before USING (step)
JOIN levels AS in_tail USING (step)
WHERE before.place = 0 AND in_tail.place = 2
ORDER BY step
