-- When was each version published, transferred and applied, by which worker, and which phase led to which?
--
-- in   weight_updates
-- out  worker_id      VARCHAR    worker
-- out  version        BIGINT     policy version
-- out  phase          VARCHAR    publish, transfer or apply
-- out  start_ns       BIGINT     start, UTC epoch
-- out  end_ns         BIGINT     end, UTC epoch
-- out  bytes          BIGINT     bytes moved; NULL if not recorded
-- out  paused         BOOLEAN    whether generation was paused; NULL if not recorded
-- out  is_applied     BOOLEAN    whether a publication led to this application
-- out  applied_by     VARCHAR[]  the engines that this publication led to; NULL for other rows
-- out  applied_at_ns  BIGINT[]   when each of them began to apply it, UTC epoch
-- grain: one row per recorded phase of an update
-- partition: driver
--
-- The first publication of a version leads to the first application by each engine that does not start before it.
WITH numbered AS (
    SELECT worker_id, version, phase, start_ns, end_ns, bytes, paused,
        row_number() OVER (ORDER BY start_ns, phase <> 'publish', worker_id, version, end_ns) AS row,
        row_number() OVER (PARTITION BY version, phase ORDER BY start_ns, worker_id, end_ns) AS place,
        row_number() OVER (PARTITION BY version, phase, worker_id ORDER BY start_ns, end_ns) AS own_place
    FROM weight_updates
),
publications AS (
    SELECT row, version, worker_id, start_ns FROM numbered WHERE phase = 'publish' AND place = 1
),
applications AS (
    SELECT numbered.row, publications.row AS publication, numbered.worker_id, numbered.start_ns
    FROM numbered JOIN publications USING (version)
    WHERE phase = 'apply' AND own_place = 1 AND numbered.start_ns >= publications.start_ns
),
led AS (
    SELECT publication, list(worker_id ORDER BY worker_id) AS applied_by, list(start_ns ORDER BY worker_id) AS at_ns
    FROM applications
    GROUP BY publication
)
SELECT
    numbered.worker_id, version, phase, numbered.start_ns, greatest(numbered.start_ns, end_ns) AS end_ns, bytes, paused,
    applications.row IS NOT NULL AS is_applied, applied_by, at_ns AS applied_at_ns
FROM numbered
LEFT JOIN applications ON numbered.row = applications.row
LEFT JOIN led ON numbered.row = led.publication
ORDER BY numbered.row
