-- How long was each worker in each state, over time, workers without GPUs too?
--
-- in   ledger, worker_extents, workers, train_steps, weight_updates, activities, engine_steps
-- arg  origin_ns        BIGINT   start of the first bucket, UTC epoch
-- arg  cell_ns          BIGINT   length of a cell
-- arg  cells_per_bucket BIGINT   cells that are added up into one bucket
-- out  worker_id        VARCHAR  worker
-- out  role             VARCHAR  its role
-- out  gpu_count        INTEGER  GPUs it owns; 0 for a controller, whose time is in no ledger
-- out  bucket           BIGINT   ordinal of the bucket, from 0
-- out  state            VARCHAR  the state; unattributed is what nothing explains
-- out  reason           VARCHAR  why it waited; NULL for other states
-- out  is_waiting       BOOLEAN  whether the state is one of waiting, whatever for
-- out  state_ns         BIGINT   time in the state
-- grain: one row per worker, bucket, state and reason
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
