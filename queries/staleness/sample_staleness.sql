-- How stale were the samples that each step trained on, by their oldest and newest token?
--
-- in   delivered_samples
-- out  step             BIGINT  optimizer step; NULL if the delivery has none
-- out  samples          BIGINT  samples, counted once per use
-- out  oldest_mean      DOUBLE  staleness of the oldest token, mean over samples, versions
-- out  oldest_max       BIGINT  its maximum, versions
-- out  newest_mean      DOUBLE  staleness of the newest token, mean over samples, versions
-- out  newest_max       BIGINT  its maximum, versions
-- out  mixed_samples    BIGINT  samples with tokens of more than one version
-- grain: one row per step
-- partition: driver
WITH uses AS (
    SELECT step, consumer_version - oldest_version AS oldest, consumer_version - newest_version AS newest
    FROM delivered_samples
    WHERE outcome = 'trained' AND oldest_version IS NOT NULL AND consumer_version IS NOT NULL
)
SELECT
    step,
    count(*) AS samples,
    avg(oldest) AS oldest_mean,
    max(oldest) AS oldest_max,
    avg(newest) AS newest_mean,
    max(newest) AS newest_max,
    count(*) FILTER (oldest > newest) AS mixed_samples
FROM uses
GROUP BY step
ORDER BY step
