-- By how much can the clocks of two hosts differ after correction, given that causes precede their effects?
--
-- in   workers, weight_updates, samples, deliveries
-- out  host      VARCHAR  host of the samplers
-- out  against   VARCHAR  host of the trainers
-- out  least_ns  BIGINT   lower bound on how far the host's clock is ahead: a trained sample ended before it was taken
-- out  most_ns   BIGINT   upper bound: a version was published before it was applied
-- grain: one row per pair of different hosts with evidence; bounds that include 0 show no difference
-- partition: sample
-- merge: max least_ns; min most_ns
WITH published AS (
    SELECT version, host, min(start_ns) AS start_ns
    FROM weight_updates JOIN workers USING (worker_id)
    WHERE phase = 'publish'
    GROUP BY version, host
),
applied AS (
    SELECT version, host, min(end_ns) AS end_ns
    FROM weight_updates JOIN workers USING (worker_id)
    WHERE phase = 'apply'
    GROUP BY version, host
),
most AS (
    SELECT applied.host, published.host AS against, min(applied.end_ns - published.start_ns) AS most_ns
    FROM applied JOIN published USING (version)
    WHERE applied.host <> published.host
    GROUP BY applied.host, published.host
),
taken AS (
    SELECT samples.worker_id AS engine_id, deliveries.worker_id AS taker_id,
        max(samples.finished_ns - deliveries.taken_ns) AS least_ns
    FROM deliveries
    JOIN samples USING (sample_id)
    -- an abandoned sample may end after it was abandoned
    WHERE deliveries.outcome = 'trained'
    GROUP BY engine_id, taker_id
),
least AS (
    SELECT engines.host, takers.host AS against, max(least_ns) AS least_ns
    FROM taken
    JOIN workers AS engines ON engine_id = engines.worker_id
    JOIN workers AS takers ON taker_id = takers.worker_id
    WHERE engines.host <> takers.host
    GROUP BY engines.host, takers.host
)
SELECT host, against, least_ns, most_ns
FROM most
FULL JOIN least USING (host, against)
ORDER BY host, against
