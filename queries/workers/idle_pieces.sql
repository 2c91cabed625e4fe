-- In which parts of each cell was no work recorded for a worker's GPUs?
--
-- in   engine_pauses, worker_spans, worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  origin_ns     BIGINT   start of the first cell, UTC epoch
-- arg  cell_ns       BIGINT   length of a cell
-- arg  idle_after_ns BIGINT   a shorter time between two engine rows is work unless it reaches a cell's edge
-- out  worker_id     VARCHAR  worker
-- out  role          VARCHAR  its role
-- out  gpu_count     INTEGER  its GPUs, above 0
-- out  cell          BIGINT   index of the cell, from 0
-- out  start_ns      BIGINT   start, UTC epoch
-- out  end_ns        BIGINT   end, UTC epoch
-- out  state         VARCHAR  a waiting state, or unattributed if no hook accounts for the time
-- out  reason        VARCHAR  reason for waiting; NULL for other states
-- grain: one row per worker, cell and interval outside its engine rows with a wait, or nothing, as innermost span
-- partition: worker
-- merge: concatenate
WITH quiet AS (
    SELECT worker_id, from_ns, to_ns
    FROM engine_pauses
    WHERE is_at_end OR to_ns - from_ns >= $idle_after_ns OR reaches_edge(from_ns, to_ns, $origin_ns, $cell_ns)
),
cut AS (
    SELECT worker_id, from_ns, to_ns,
        unnest(range((from_ns - $origin_ns) // $cell_ns, (to_ns - 1 - $origin_ns) // $cell_ns + 1)) AS cell
    FROM quiet
),
pieces AS (
    SELECT worker_id, cell, start_ns, end_ns, state, reason
    FROM innermost_pieces($origin_ns, $cell_ns, false, 'worker_extents')
    WHERE starts_with(state, 'waiting') OR state IN ('no_requests', 'unattributed')
)
SELECT
    worker_id, role, gpu_count, cell,
    greatest(pieces.start_ns, from_ns) AS start_ns, least(pieces.end_ns, to_ns) AS end_ns, state, reason
FROM pieces
JOIN cut USING (worker_id, cell)
JOIN worker_extents USING (worker_id)
WHERE greatest(pieces.start_ns, from_ns) < least(pieces.end_ns, to_ns)
ORDER BY worker_id, start_ns
