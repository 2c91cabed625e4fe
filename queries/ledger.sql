-- Where did every GPU-nanosecond of every worker go?
--
-- in   workers, worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  origin_ns        BIGINT   start of the first cell, UTC epoch
-- arg  cell_ns          BIGINT   length of a cell; smaller is faster for long runs, the sums do not change
-- arg  cells_per_bucket BIGINT   cells that are added up into one bucket
-- arg  rows_disjoint    BOOLEAN  the answer of engine_row_order; false is always right, true is faster
-- out  worker_id        VARCHAR  worker
-- out  role             VARCHAR  its role
-- out  gpu_count        INTEGER  GPUs it owns, above 0
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  state            VARCHAR  the state; unattributed is what nothing explains
-- out  reason           VARCHAR  why it waited; NULL for other states
-- out  state_ns         BIGINT   wall-clock time in the state; times gpu_count it is GPU-nanoseconds
-- grain: one row per worker, bucket, state and reason
WITH spans AS MATERIALIZED (
    SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, state, reason, layer
    FROM span_pieces($origin_ns, $cell_ns)
),
plain_cells AS (
    SELECT
        worker_id, cell,
        max(end_ns) - min(start_ns) AS cell_length_ns,
        max(began_ns) AS owner_began_ns,
        arg_max({'state': state, 'reason': reason}, (began_ns, -ended_ns, layer, state, coalesce(reason, ''))) AS owner
    FROM spans
    GROUP BY worker_id, cell
    HAVING $rows_disjoint AND max(start_ns) = min(start_ns) AND min(end_ns) = max(end_ns)
),
plain_rows AS MATERIALIZED (
    SELECT worker_id, cell, rows.state::VARCHAR AS state, sum(busy_ns)::BIGINT AS busy_ns,
        sum(rows.end_ns - rows.start_ns)::BIGINT AS row_ns
    FROM engine_pieces($origin_ns, $cell_ns) AS rows
    JOIN plain_cells USING (worker_id, cell)
    WHERE rows.began_ns >= owner_began_ns
    GROUP BY worker_id, cell, rows.state
),
owner_rest AS (
    SELECT worker_id, cell, owner.state AS state, owner.reason AS reason,
        cell_length_ns - coalesce(sum(row_ns), 0)::BIGINT AS state_ns
    FROM plain_cells
    LEFT JOIN plain_rows USING (worker_id, cell)
    GROUP BY worker_id, cell, owner, cell_length_ns
),
contested AS MATERIALIZED (
    SELECT worker_id, cell, began_ns, start_ns, end_ns, busy_ns, state, reason, is_engine
    FROM innermost_pieces($origin_ns, $cell_ns, $rows_disjoint)
),
contested_rows AS (
    SELECT worker_id, cell, state, sum(end_ns - start_ns)::BIGINT AS row_ns,
        least(any_value(busy_ns), sum(end_ns - start_ns))::BIGINT AS busy_ns
    FROM contested
    WHERE is_engine
    GROUP BY worker_id, cell, state, began_ns
),
engine_rows AS (
    SELECT worker_id, cell, state, busy_ns, row_ns FROM plain_rows
    UNION ALL SELECT worker_id, cell, state, busy_ns, row_ns FROM contested_rows
),
pieces AS (
    SELECT worker_id, cell, state, NULL AS reason, busy_ns AS state_ns FROM engine_rows
    UNION ALL SELECT worker_id, cell, 'between_passes', NULL, row_ns - busy_ns FROM engine_rows
    UNION ALL SELECT worker_id, cell, state, reason, state_ns FROM owner_rest
    UNION ALL SELECT worker_id, cell, state, reason, end_ns - start_ns FROM contested WHERE NOT is_engine
)
SELECT
    pieces.worker_id,
    workers.role,
    workers.gpu_count,
    $origin_ns + (pieces.cell // $cells_per_bucket) * $cells_per_bucket * $cell_ns AS bucket_start_ns,
    pieces.state,
    pieces.reason,
    sum(pieces.state_ns)::BIGINT AS state_ns
FROM pieces
JOIN workers USING (worker_id)
GROUP BY ALL
HAVING sum(pieces.state_ns) > 0
ORDER BY pieces.worker_id, bucket_start_ns, state, reason
