-- When did each worker start and end?
--
-- in   workers, engine_steps, train_steps, weight_updates, activities, samples
-- out  worker_id    VARCHAR  worker
-- out  role         VARCHAR  sampler, trainer, colocated, auxiliary or controller
-- out  host         VARCHAR  host it ran on
-- out  gpu_count    INTEGER  its GPUs
-- out  start_ns     BIGINT   its start, UTC epoch
-- out  end_ns       BIGINT   its end; if it never recorded its stop, its last flush, or its last row if later
-- out  has_end      BOOLEAN  whether it recorded its stop
-- out  is_over      BOOLEAN  whether no more data is due from it: it recorded its stop, or was started again
-- out  has_rows     BOOLEAN  whether it recorded engine rows
-- out  last_row_ns  BIGINT   latest end of its rows, UTC epoch; NULL without rows
-- grain: one row per worker
-- partition: worker
-- merge: concatenate
WITH row_ends AS (
    SELECT worker_id, max(end_ns) AS last_row_ns, true AS of_engine FROM engine_steps GROUP BY worker_id
    UNION ALL SELECT worker_id, max(end_ns), false FROM train_steps GROUP BY worker_id
    UNION ALL SELECT worker_id, max(end_ns), false FROM weight_updates GROUP BY worker_id
    UNION ALL SELECT worker_id, max(end_ns), false FROM activities GROUP BY worker_id
    UNION ALL SELECT worker_id, max(finished_ns), false FROM samples GROUP BY worker_id
),
last_rows AS (
    SELECT worker_id, max(last_row_ns) AS last_row_ns, bool_or(of_engine) AS has_rows FROM row_ends GROUP BY worker_id
)
SELECT
    workers.worker_id,
    workers.role,
    workers.host,
    workers.gpu_count,
    workers.started_ns AS start_ns,
    greatest(
        workers.started_ns,
        coalesce(workers.stopped_ns, greatest(workers.last_flush_ns, last_rows.last_row_ns))
    ) AS end_ns,
    workers.stopped_ns IS NOT NULL AS has_end,
    has_end OR is_replaced AS is_over,
    coalesce(has_rows, false) AS has_rows,
    last_row_ns
FROM workers
LEFT JOIN last_rows USING (worker_id)
ORDER BY workers.worker_id
