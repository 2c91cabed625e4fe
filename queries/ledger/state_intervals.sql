-- In which state was each worker, from when to when, exactly as the ledger counts it?
--
-- in   worker_spans, worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  origin_ns  BIGINT   start of the first cell, UTC epoch
-- arg  cell_ns    BIGINT   length of a cell; with the ledger's cells the sums are the ledger's, to the nanosecond
-- out  worker_id  VARCHAR  worker
-- out  role       VARCHAR  its role
-- out  gpu_count  INTEGER  its GPUs; 0 for a controller, which is not in the ledger
-- out  start_ns   BIGINT   start, UTC epoch
-- out  end_ns     BIGINT   end, UTC epoch
-- out  state      VARCHAR  the ledger's state; unattributed if no hook accounts for the time
-- out  reason     VARCHAR  reason for waiting; NULL for other states
-- grain: one row per interval of one worker in one state; intervals do not overlap and leave no gap
-- partition: worker
-- merge: concatenate
--
-- An engine row says how long its passes took, not when: they are placed at its start, and the time between passes
-- after them.
WITH pieces AS (
    SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, busy_ns, state, reason, is_engine
    FROM innermost_pieces($origin_ns, $cell_ns, true, 'worker_extents')
    UNION ALL
    SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, busy_ns, state, reason, is_engine
    FROM innermost_pieces($origin_ns, $cell_ns, false, 'worker_extents', of_controllers := true)
),
passes AS (
    SELECT worker_id, start_ns, end_ns, state,
        start_ns + greatest(0, least(
            end_ns - start_ns,
            busy_ns - coalesce(sum(end_ns - start_ns) OVER (
                PARTITION BY worker_id, cell, began_ns, ended_ns, state ORDER BY start_ns
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0)
        ))::BIGINT AS busy_until_ns
    FROM pieces
    WHERE is_engine
),
placed AS (
    SELECT worker_id, start_ns, end_ns, state, reason FROM pieces WHERE NOT is_engine
    UNION ALL SELECT worker_id, start_ns, busy_until_ns, state, NULL FROM passes WHERE start_ns < busy_until_ns
    UNION ALL SELECT worker_id, busy_until_ns, end_ns, 'between_passes', NULL FROM passes WHERE busy_until_ns < end_ns
),
marked AS (
    SELECT worker_id, start_ns, end_ns, state, reason,
        (state, reason) IS DISTINCT FROM lag((state, reason)) OVER (PARTITION BY worker_id ORDER BY start_ns) AS is_new
    FROM placed
),
numbered AS (
    SELECT worker_id, start_ns, end_ns, state, reason,
        count_if(is_new) OVER (PARTITION BY worker_id ORDER BY start_ns) AS stretch
    FROM marked
),
intervals AS (
    SELECT worker_id, min(start_ns) AS start_ns, max(end_ns) AS end_ns, state, reason
    FROM numbered
    GROUP BY worker_id, stretch, state, reason
)
SELECT worker_id, role, gpu_count, intervals.start_ns, intervals.end_ns, state, reason
FROM intervals
JOIN worker_extents USING (worker_id)
ORDER BY intervals.start_ns, worker_id
