-- How long did each version take from publication to each engine?
--
-- in   weight_updates
-- out  version               BIGINT   policy version
-- out  worker_id             VARCHAR  engine that applied it
-- out  publish_start_ns      BIGINT   start of the publication, UTC epoch; NULL if not recorded
-- out  applied_ns            BIGINT   end of the application, UTC epoch
-- out  publish_to_applied_s  DOUBLE   from the start of the publication to the end of the application, seconds
-- out  apply_s               DOUBLE   time spent applying, seconds
-- out  paused                BOOLEAN  whether generation was paused meanwhile; NULL if not recorded
-- out  kv                    VARCHAR  kept or recomputed: what happened to the KV cache; NULL if not recorded
-- out  bytes                 BIGINT   bytes moved; NULL if not recorded
-- grain: one row per version and engine
-- partition: driver
WITH published AS (
    SELECT version, min(start_ns) AS publish_start_ns FROM weight_updates WHERE phase = 'publish' GROUP BY version
),
applied AS (
    SELECT version, worker_id, max(end_ns) AS applied_ns, sum(end_ns - start_ns)::BIGINT AS apply_ns,
        bool_or(paused) AS paused, max(kv) AS kv, max(bytes) AS bytes
    FROM weight_updates
    WHERE phase = 'apply'
    GROUP BY version, worker_id
)
SELECT
    version, worker_id, publish_start_ns, applied_ns,
    (applied_ns - publish_start_ns) / 1e9 AS publish_to_applied_s,
    apply_ns / 1e9 AS apply_s,
    paused, kv, bytes
FROM applied
LEFT JOIN published USING (version)
ORDER BY version, worker_id
