-- In which parts of each cell was no work recorded for a worker's GPUs?
--
-- in   worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  origin_ns     BIGINT   start of the first cell, UTC epoch
-- arg  cell_ns       BIGINT   length of a cell
-- arg  idle_after_ns BIGINT   a shorter time between two engine rows is work unless it reaches a cell's edge
-- arg  rows_disjoint BOOLEAN  the result of engine_row_order; false is always correct, true is faster
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
--
-- A row that was polled or logged while the engine ran nothing is no work.
-- Rows that do not overlap are stored in order, so each follows its neighbour and nothing is sorted.
WITH working AS (
    SELECT worker_id, start_ns, end_ns
    FROM engine_steps
    WHERE start_ns < end_ns AND NOT (coalesce(source, 'measured') <> 'measured' AND running = 0 AND decode_tokens = 0)
),
neighbours AS (
    SELECT worker_id, lag(worker_id) OVER () AS previous_worker_id, lag(end_ns) OVER () AS from_ns, start_ns AS to_ns
    FROM working
    WHERE $rows_disjoint
),
worked AS (
    SELECT worker_id, greatest(working.start_ns, extents.start_ns) AS began_ns,
        least(working.end_ns, extents.end_ns) AS ended_ns
    FROM working
    JOIN worker_extents AS extents USING (worker_id)
    WHERE gpu_count > 0 AND greatest(working.start_ns, extents.start_ns) < least(working.end_ns, extents.end_ns)
),
ends AS (
    SELECT worker_id, min(began_ns) AS first_ns, max(ended_ns) AS last_ns FROM worked GROUP BY worker_id
),
between_rows AS (
    SELECT worker_id, from_ns, to_ns
    FROM neighbours
    JOIN worker_extents USING (worker_id)
    WHERE worker_id = previous_worker_id AND gpu_count > 0 AND from_ns > start_ns AND to_ns < end_ns
    UNION ALL
    SELECT worker_id,
        max(ended_ns) OVER (
            PARTITION BY worker_id ORDER BY began_ns, ended_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ),
        began_ns
    FROM worked
    WHERE NOT $rows_disjoint
),
quiet AS (
    SELECT worker_id, from_ns, to_ns FROM between_rows
    WHERE to_ns > from_ns
        AND (to_ns - from_ns >= $idle_after_ns
            OR (from_ns - $origin_ns) // $cell_ns < (to_ns - $origin_ns) // $cell_ns
            OR (from_ns - $origin_ns) % $cell_ns = 0)
    UNION ALL
    SELECT worker_id, start_ns, coalesce(first_ns, end_ns) FROM worker_extents LEFT JOIN ends USING (worker_id)
    UNION ALL
    SELECT worker_id, last_ns, end_ns FROM worker_extents JOIN ends USING (worker_id)
),
cut AS (
    SELECT worker_id, from_ns, to_ns,
        unnest(range((from_ns - $origin_ns) // $cell_ns, (to_ns - 1 - $origin_ns) // $cell_ns + 1)) AS cell
    FROM quiet
    WHERE from_ns < to_ns
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
