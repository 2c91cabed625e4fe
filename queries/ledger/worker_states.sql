-- How long was each worker in each state over time, including workers without GPUs?
--
-- in   ledger, worker_spans, worker_extents, workers, train_steps, weight_updates, activities, engine_steps
-- arg  origin_ns        BIGINT   start of the first bucket, UTC epoch
-- arg  cell_ns          BIGINT   length of a cell
-- arg  cells_per_bucket BIGINT   number of cells per bucket
-- out  worker_id        VARCHAR  worker
-- out  role             VARCHAR  its role
-- out  gpu_count        INTEGER  its GPUs; 0 for a controller, which is not in the ledger
-- out  bucket           BIGINT   index of the bucket, from 0
-- out  state            VARCHAR  the state; unattributed if no hook accounts for the time
-- out  reason           VARCHAR  reason for waiting; NULL for other states
-- out  is_waiting       BOOLEAN  whether the state is a waiting state
-- out  state_ns         BIGINT   time in the state
-- grain: one row per worker, bucket, state and reason
-- partition: worker
-- merge: concatenate
WITH states AS (
    SELECT worker_id, role, gpu_count,
        (bucket_start_ns - $origin_ns) // ($cell_ns::BIGINT * $cells_per_bucket) AS bucket, state, reason, state_ns
    FROM ledger
    UNION ALL
    SELECT pieces.worker_id, role, gpu_count, cell // $cells_per_bucket, state, reason,
        sum(pieces.end_ns - pieces.start_ns)::BIGINT
    FROM innermost_pieces($origin_ns, $cell_ns, false, 'workers', of_controllers := true) AS pieces
    JOIN worker_extents USING (worker_id)
    GROUP BY ALL
)
SELECT worker_id, role, gpu_count, bucket, state, reason,
    starts_with(state, 'waiting') OR state = 'no_requests' AS is_waiting, state_ns
FROM states
ORDER BY worker_id, bucket, state, reason
