-- Where did every GPU-nanosecond of every worker go?
--
-- in   engine_cells, workers, worker_spans, worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  origin_ns        BIGINT   start of the first cell, UTC epoch
-- arg  cell_ns          BIGINT   length of a cell; affects speed only, smaller is faster for long runs
-- arg  cells_per_bucket BIGINT   number of cells per bucket
-- arg  rows_disjoint    BOOLEAN  the result of engine_row_order; false is always correct, true is faster
-- out  worker_id        VARCHAR  worker
-- out  role             VARCHAR  its role
-- out  gpu_count        INTEGER  its GPUs, above 0
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  state            VARCHAR  the state; unattributed if no hook accounts for the time
-- out  reason           VARCHAR  reason for waiting; NULL for other states
-- out  state_ns         BIGINT   wall-clock time in the state; multiply by gpu_count for GPU-nanoseconds
-- grain: one row per worker, bucket, state and reason
-- partition: worker
-- merge: concatenate
-- Rows that do not overlap need no sorting: nearly all lie inside the span interval that they start in, where cells of
-- them count as one row, and the others are split at the interval edges. Rows that may overlap are flattened together
-- with the spans.
WITH stretches AS MATERIALIZED (
    SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, busy_ns, state, reason, is_engine,
        dense_rank() OVER (ORDER BY worker_id, cell // $cells_per_bucket, state, reason)::INTEGER AS account
    FROM innermost_pieces($origin_ns, $cell_ns, NOT $rows_disjoint, 'workers')
),
accounts AS MATERIALIZED (
    SELECT account, worker_id, any_value(cell) // $cells_per_bucket AS bucket, any_value(state) AS state,
        any_value(reason) AS reason, coalesce(sum(end_ns - start_ns) FILTER (NOT is_engine), 0)::BIGINT AS stretch_ns
    FROM stretches
    GROUP BY account, worker_id
),
clipped_cells AS (
    SELECT worker_id, greatest(first_ns, start_ns) AS since_ns, least(last_ns, end_ns) AS till_ns,
        (since_ns - $origin_ns) // $cell_ns AS cell, passing_ns, row_ns, decodes, prefills
    FROM engine_cells
    JOIN worker_extents USING (worker_id)
    WHERE is_timed AND since_ns < till_ns
),
placed_rows AS MATERIALIZED (
    SELECT account, decodes, prefills,
        if(till_ns <= homes.end_ns, NULL, since_ns) AS began_ns,
        if(till_ns <= homes.end_ns, NULL, till_ns) AS ended_ns,
        sum(least(passing_ns, till_ns - since_ns))::BIGINT AS busy_ns, sum(least(row_ns, till_ns - since_ns)) AS row_ns
    FROM clipped_cells AS rows
    JOIN stretches AS homes
        ON rows.worker_id = homes.worker_id AND rows.cell = homes.cell
        AND since_ns >= homes.start_ns AND since_ns < homes.end_ns
    ANTI JOIN claims($origin_ns, $cell_ns) AS claimed
        ON claimed.worker_id = rows.worker_id AND claimed.cell = rows.cell AND since_ns >= from_ns AND since_ns < to_ns
    WHERE $rows_disjoint
    GROUP BY account, decodes, prefills, 4, 5
),
cut_rows AS (
    SELECT worker_id, cell, began_ns, ended_ns, busy_ns, decodes, prefills,
        greatest(began_ns, $origin_ns + cell * $cell_ns) AS start_ns,
        least(ended_ns, $origin_ns + (cell + 1) * $cell_ns) AS end_ns
    FROM (
        SELECT worker_id, began_ns, ended_ns, busy_ns, decodes, prefills,
            unnest(range((began_ns - $origin_ns) // $cell_ns, (ended_ns - 1 - $origin_ns) // $cell_ns + 1)) AS cell
        FROM placed_rows JOIN accounts USING (account) WHERE began_ns IS NOT NULL
    )
),
won AS MATERIALIZED (
    SELECT account, rows.worker_id, rows.cell, rows.began_ns, decodes, prefills,
        busy_share(rows.busy_ns, rows.began_ns, rows.ended_ns, rows.start_ns, rows.end_ns) AS busy_ns,
        least(rows.end_ns, stretches.end_ns) - greatest(rows.start_ns, stretches.start_ns) AS row_ns
    FROM cut_rows AS rows
    JOIN stretches
        ON rows.worker_id = stretches.worker_id AND rows.cell = stretches.cell
        AND rows.start_ns < stretches.end_ns AND rows.end_ns > stretches.start_ns
        AND (rows.began_ns, -rows.ended_ns) >= (stretches.began_ns, -stretches.ended_ns)
),
engine_rows AS MATERIALIZED (
    SELECT account, pass_state(decodes, prefills) AS state, busy_ns, row_ns FROM placed_rows WHERE began_ns IS NULL
    UNION ALL
    SELECT any_value(account), pass_state(decodes, prefills), least(any_value(busy_ns), sum(row_ns)), sum(row_ns)
    FROM won GROUP BY worker_id, cell, began_ns, decodes, prefills
    UNION ALL
    SELECT any_value(account), state, least(any_value(busy_ns), sum(end_ns - start_ns)), sum(end_ns - start_ns)
    FROM stretches WHERE is_engine GROUP BY worker_id, cell, began_ns, ended_ns, state
),
pieces AS (
    SELECT account, state, NULL AS reason, busy_ns AS state_ns FROM engine_rows
    UNION ALL SELECT account, 'between_passes', NULL, row_ns - busy_ns FROM engine_rows
    UNION ALL SELECT account, state, reason, stretch_ns FROM accounts
    UNION ALL SELECT account, state, reason, -row_ns FROM won JOIN accounts USING (account)
    UNION ALL SELECT account, state, reason, -row_ns FROM placed_rows JOIN accounts USING (account)
        WHERE began_ns IS NULL
)
SELECT
    accounts.worker_id, workers.role, workers.gpu_count,
    $origin_ns + accounts.bucket * $cells_per_bucket * $cell_ns AS bucket_start_ns,
    pieces.state, pieces.reason,
    sum(pieces.state_ns)::BIGINT AS state_ns
FROM pieces
JOIN accounts USING (account)
JOIN workers USING (worker_id)
GROUP BY ALL
HAVING sum(pieces.state_ns) > 0
ORDER BY accounts.worker_id, bucket_start_ns, pieces.state, pieces.reason
