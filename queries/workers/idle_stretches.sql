-- What is the longest time without recorded work of each worker's GPUs, and what was the worker waiting for?
--
-- in   idle_pieces
-- out  worker_id      VARCHAR  worker
-- out  role           VARCHAR  its role
-- out  gpu_count      INTEGER  its GPUs, above 0
-- out  start_ns       BIGINT   start, UTC epoch
-- out  end_ns         BIGINT   end, UTC epoch
-- out  idle_s         DOUBLE   its length, seconds
-- out  state          VARCHAR  the state that took most of it; unattributed if no hook accounts for that time
-- out  reason         VARCHAR  reason for waiting; NULL for other states
-- out  state_ratio    DOUBLE   share of the stretch in that state, 0..1
-- grain: one row per worker without recorded work at some time, the longest stretch first
-- partition: worker
-- merge: concatenate
WITH marked AS (
    SELECT worker_id, role, gpu_count, start_ns, end_ns, state, reason,
        start_ns IS DISTINCT FROM lag(end_ns) OVER (PARTITION BY worker_id ORDER BY start_ns) AS is_new
    FROM idle_pieces
),
numbered AS (
    SELECT worker_id, role, gpu_count, start_ns, end_ns, state, reason,
        count_if(is_new) OVER (PARTITION BY worker_id ORDER BY start_ns) AS stretch
    FROM marked
),
parts AS (
    SELECT worker_id, role, gpu_count, stretch, state, reason, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        sum(end_ns - start_ns)::BIGINT AS state_ns
    FROM numbered
    GROUP BY ALL
),
longest AS (
    SELECT worker_id, stretch, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM parts
    GROUP BY worker_id, stretch
    QUALIFY row_number() OVER (PARTITION BY worker_id ORDER BY max(end_ns) - min(start_ns) DESC, min(start_ns)) = 1
)
SELECT worker_id, role, gpu_count, longest.start_ns, longest.end_ns,
    (longest.end_ns - longest.start_ns) / 1e9 AS idle_s, state, reason,
    state_ns / (longest.end_ns - longest.start_ns)::DOUBLE AS state_ratio
FROM parts
JOIN longest USING (worker_id, stretch)
QUALIFY row_number() OVER (PARTITION BY worker_id ORDER BY state_ns DESC, state, reason) = 1
ORDER BY idle_s DESC, worker_id
