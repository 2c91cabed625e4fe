-- How many response tokens did each step train on, by staleness?
--
-- in   samples, delivered_samples
-- out  step                 BIGINT   optimizer step; NULL if the delivery has none
-- out  consumer_version     BIGINT   last version published at the start of the step
-- out  staleness            BIGINT   consumer version minus the version that generated the token
-- out  version_source       VARCHAR  source of the tokens' versions
-- out  tokens               BIGINT   response tokens, counted once per use
-- out  in_flight_versions   BIGINT   sum over the tokens of the versions from the token to its sample's newest token
-- out  in_queue_versions    BIGINT   sum over the tokens of the versions from that token to the step
-- grain: one row per step, consumer version, staleness and version source
-- partition: sample
-- merge: sum tokens, in_flight_versions, in_queue_versions
WITH segments AS (
    SELECT step, consumer_version, newest_version, version_source, versions
    FROM samples
    JOIN delivered_samples USING (sample_id)
    WHERE outcome = 'trained' AND consumer_version IS NOT NULL
),
runs AS (
    SELECT step, consumer_version, newest_version, version_source, unnest(versions) AS run FROM segments
)
SELECT
    step,
    consumer_version,
    consumer_version - run.version AS staleness,
    version_source,
    sum(run."end" - run.start)::BIGINT AS tokens,
    sum((run."end" - run.start) * (newest_version - run.version))::BIGINT AS in_flight_versions,
    sum((run."end" - run.start) * (consumer_version - newest_version))::BIGINT AS in_queue_versions
FROM runs
GROUP BY ALL
ORDER BY step, consumer_version, staleness, version_source
