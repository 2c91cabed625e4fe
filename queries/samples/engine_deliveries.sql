-- How many samples of each engine left the queue, and how many of them were dropped as stale?
--
-- in   delivered_samples
-- out  worker_id  VARCHAR  engine of the last segment of the sample
-- out  samples    BIGINT   deliveries
-- out  dropped    BIGINT   deliveries of samples that were dropped as stale
-- grain: one row per engine
-- partition: sample
-- merge: sum samples, dropped
SELECT worker_id, count(*) AS samples, count(*) FILTER (outcome = 'dropped_stale') AS dropped
FROM delivered_samples
WHERE is_recorded
GROUP BY worker_id
ORDER BY worker_id
