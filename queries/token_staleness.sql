-- How many response tokens did each step train on, by how many versions old they were?
--
-- in   samples, sample_totals, deliveries, train_steps
-- out  step                 BIGINT   optimizer step; NULL when the delivery names none
-- out  consumer_version     BIGINT   last version published when the step started
-- out  staleness            BIGINT   consumer version minus the version that sampled the token
-- out  version_source       VARCHAR  where the tokens' versions come from
-- out  tokens               BIGINT   response tokens, once per use
-- out  in_flight_versions   BIGINT   sum over the tokens of the versions between the token and its sample's newest one
-- out  in_queue_versions    BIGINT   sum over the tokens of the versions between that one and the step
-- grain: one row per step, consumer version, staleness and version source
WITH step_versions AS (
    SELECT step, max(version_in) AS version_in FROM train_steps GROUP BY step
),
uses AS (
    SELECT sample_id, deliveries.step, coalesce(consumer_version, version_in) AS consumer_version
    FROM deliveries
    LEFT JOIN step_versions USING (step)
    WHERE outcome = 'trained' AND coalesce(consumer_version, version_in) IS NOT NULL
),
runs AS (
    SELECT sample_id, version_source, unnest(versions, recursive := true) FROM samples
)
SELECT
    uses.step,
    uses.consumer_version,
    uses.consumer_version - runs.version AS staleness,
    runs.version_source,
    sum(runs."end" - runs.start)::BIGINT AS tokens,
    sum((runs."end" - runs.start) * (sample_totals.newest_version - runs.version))::BIGINT AS in_flight_versions,
    sum((runs."end" - runs.start) * (uses.consumer_version - sample_totals.newest_version))::BIGINT
        AS in_queue_versions
FROM runs
JOIN uses USING (sample_id)
JOIN sample_totals USING (sample_id)
GROUP BY ALL
ORDER BY uses.step, uses.consumer_version, staleness, runs.version_source
