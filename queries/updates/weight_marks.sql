-- When were weights published, and when did each engine apply them?
--
-- in   weight_updates, worker_lanes
-- arg  origin_ns   BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns   BIGINT   length of a bucket
-- arg  most_marks  BIGINT   if engines times buckets exceed this, updates of neighboring buckets share a mark
-- out  phase       VARCHAR  publish or apply
-- out  worker_id   VARCHAR  the engine that applied them; NULL for a publication
-- out  time_ns     BIGINT   end of the first of the updates, UTC epoch
-- out  versions    BIGINT   number of versions in the mark
-- out  version     BIGINT   the first of them
-- grain: one row per bucket with publications, and per engine lane and bucket with applications
-- partition: driver
WITH moments AS (
    SELECT phase, NULL AS worker_id, version, max(end_ns) AS time_ns
    FROM weight_updates WHERE phase = 'publish'
    GROUP BY phase, version
    UNION ALL
    SELECT phase, worker_id, version, max(end_ns)
    FROM weight_updates
    WHERE phase = 'apply' AND worker_id IN (SELECT worker_id FROM worker_lanes WHERE worker_count = 1)
    GROUP BY phase, worker_id, version
),
placed AS (
    SELECT phase, worker_id, version, time_ns, (time_ns - $origin_ns) // $bucket_ns AS bucket,
        dense_rank() OVER (PARTITION BY phase ORDER BY worker_id) AS engine
    FROM moments
),
folds AS (
    SELECT phase, (max(engine) * (max(bucket) - min(bucket) + 1) - 1) // $most_marks + 1 AS fold
    FROM placed
    GROUP BY phase
)
SELECT phase, worker_id, min(time_ns) AS time_ns, count(DISTINCT version) AS versions, min(version) AS version
FROM placed JOIN folds USING (phase)
GROUP BY phase, worker_id, bucket // fold
ORDER BY phase, worker_id, time_ns
