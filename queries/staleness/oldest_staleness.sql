-- How many samples did each step train on, by the staleness of their oldest token?
--
-- in   delivered_samples
-- out  step       BIGINT  optimizer step; NULL if the delivery has none
-- out  staleness  BIGINT  consumer version minus the oldest version that generated a token, versions
-- out  samples    BIGINT  samples, counted once per use
-- grain: one row per step and staleness
-- partition: sample
-- merge: sum samples
SELECT step, consumer_version - oldest_version AS staleness, count(*) AS samples
FROM delivered_samples
WHERE outcome = 'trained' AND oldest_version IS NOT NULL AND consumer_version IS NOT NULL
GROUP BY ALL
ORDER BY step, staleness
