-- How old were the samples that each step trained on, by their oldest and by their newest token?
--
-- in   sample_totals, deliveries, train_steps
-- out  step             BIGINT  optimizer step; NULL when the delivery names none
-- out  samples          BIGINT  samples, once per use
-- out  oldest_mean      DOUBLE  staleness of the oldest token, mean over samples, versions
-- out  oldest_max       BIGINT  its maximum, versions
-- out  newest_mean      DOUBLE  staleness of the newest token, mean over samples, versions
-- out  newest_max       BIGINT  its maximum, versions
-- out  mixed_samples    BIGINT  samples that hold tokens of more than one version
-- grain: one row per step
WITH step_versions AS (
    SELECT step, max(version_in) AS version_in FROM train_steps GROUP BY step
),
uses AS (
    SELECT
        deliveries.step,
        coalesce(consumer_version, version_in) - oldest_version AS oldest,
        coalesce(consumer_version, version_in) - newest_version AS newest
    FROM deliveries
    LEFT JOIN step_versions USING (step)
    JOIN sample_totals USING (sample_id)
    WHERE outcome = 'trained' AND oldest_version IS NOT NULL AND coalesce(consumer_version, version_in) IS NOT NULL
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
