-- What was each GPU worker doing, from when to when?
--
-- in   worker_spans, worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  origin_ns  BIGINT   start of the run, UTC epoch
-- arg  end_ns     BIGINT   end of the run, UTC epoch
-- out  worker_id  VARCHAR  worker
-- out  start_ns   BIGINT   start, UTC epoch
-- out  end_ns     BIGINT   end, UTC epoch
-- out  state      VARCHAR  the ledger's state; an engine row is one interval, including the time between passes
-- out  reason     VARCHAR  reason for waiting; NULL for other states
-- grain: one row per interval of one worker in one state; intervals do not overlap and leave no gap
-- partition: worker
-- merge: concatenate
WITH pieces AS (
    SELECT worker_id, start_ns, end_ns, state, reason
    FROM innermost_pieces($origin_ns, greatest(1, $end_ns - $origin_ns), true, 'worker_extents')
),
marked AS (
    SELECT worker_id, start_ns, end_ns, state, reason,
        (state, reason) IS DISTINCT FROM lag((state, reason)) OVER (PARTITION BY worker_id ORDER BY start_ns) AS is_new
    FROM pieces
),
numbered AS (
    SELECT worker_id, start_ns, end_ns, state, reason,
        count_if(is_new) OVER (PARTITION BY worker_id ORDER BY start_ns) AS stretch
    FROM marked
)
SELECT worker_id, min(start_ns) AS start_ns, max(end_ns) AS end_ns, state, reason
FROM numbered
GROUP BY worker_id, stretch, state, reason
ORDER BY worker_id, start_ns
