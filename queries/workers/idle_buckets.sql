-- For how long was no work recorded for each worker's GPUs, bucket by bucket?
--
-- in   idle_pieces
-- arg  origin_ns       BIGINT   start of the first bucket, UTC epoch
-- arg  cell_ns         BIGINT   length of a bucket
-- out  worker_id       VARCHAR  worker
-- out  bucket_start_ns BIGINT   start of the bucket, UTC epoch
-- out  start_ns        BIGINT   start of the time without work in the bucket, UTC epoch
-- out  end_ns          BIGINT   its end, UTC epoch
-- grain: one row per worker, bucket and time that reaches an edge of the bucket, and the longest of those that do not
-- partition: worker
-- merge: concatenate
WITH marked AS (
    SELECT worker_id, cell, start_ns, end_ns,
        start_ns IS DISTINCT FROM lag(end_ns) OVER (PARTITION BY worker_id, cell ORDER BY start_ns) AS is_new
    FROM idle_pieces
),
numbered AS (
    SELECT worker_id, cell, start_ns, end_ns,
        count_if(is_new) OVER (PARTITION BY worker_id, cell ORDER BY start_ns) AS stretch
    FROM marked
),
stretches AS (
    SELECT worker_id, cell, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        min(start_ns) = $origin_ns + cell * $cell_ns OR max(end_ns) = $origin_ns + (cell + 1) * $cell_ns AS is_at_edge
    FROM numbered
    GROUP BY worker_id, cell, stretch
)
SELECT worker_id, $origin_ns + cell * $cell_ns AS bucket_start_ns, start_ns, end_ns
FROM stretches
QUALIFY is_at_edge
    OR row_number() OVER (PARTITION BY worker_id, cell, is_at_edge ORDER BY end_ns - start_ns DESC, start_ns) = 1
ORDER BY worker_id, start_ns
