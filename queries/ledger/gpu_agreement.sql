-- While the hooks report a worker as busy, did its GPU run any kernel?
--
-- in   gpu_samples, worker_spans, worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  origin_ns       BIGINT   start of the run, UTC epoch
-- arg  end_ns          BIGINT   end of the run, UTC epoch
-- arg  gpu_lag_ns      BIGINT   how long before its period a reading may still look back, ns
-- out  worker_id       VARCHAR  worker
-- out  state           VARCHAR  the ledger's state; the passes of an engine are one state, engine_rows
-- out  readings        BIGINT   GPU readings that lie entirely in the state, with the time that they look back
-- out  read_s          DOUBLE   time that they cover, seconds
-- out  busy_ratio      DOUBLE   share of that time in which a kernel ran, 0..1; NULL if not read
-- out  sm_active_ratio DOUBLE   mean share of SMs with a resident warp, 0..1; NULL if not read
-- grain: one row per worker and state with a reading
-- partition: worker
-- merge: concatenate
--
-- The driver renews its counters up to a second late: on an H100, readings of the first 0.2 s of a state were those of
-- the state before.
WITH pieces AS (
    SELECT worker_id, start_ns, end_ns, if(is_engine, 'engine_rows', state) AS state
    FROM innermost_pieces($origin_ns, greatest(1, $end_ns - $origin_ns), true, 'gpu_samples')
),
marked AS (
    SELECT worker_id, start_ns, end_ns, state,
        state IS DISTINCT FROM lag(state) OVER (PARTITION BY worker_id ORDER BY start_ns) AS is_new
    FROM pieces
),
numbered AS (
    SELECT worker_id, start_ns, end_ns, state,
        count_if(is_new) OVER (PARTITION BY worker_id ORDER BY start_ns) AS stretch
    FROM marked
),
stretches AS (
    SELECT worker_id, state, min(start_ns) AS start_ns, max(end_ns) AS end_ns
    FROM numbered
    GROUP BY worker_id, stretch, state
),
readings AS (
    SELECT worker_id, gpu_id, busy_ratio, sm_active_ratio, time_ns AS to_ns,
        lag(time_ns) OVER (PARTITION BY worker_id, gpu_id ORDER BY time_ns) AS from_ns
    FROM gpu_samples
),
placed AS (
    SELECT readings.worker_id, state, from_ns, to_ns, busy_ratio, sm_active_ratio
    FROM readings
    ASOF JOIN stretches ON readings.worker_id = stretches.worker_id AND from_ns - $gpu_lag_ns >= stretches.start_ns
    WHERE from_ns < to_ns AND to_ns <= stretches.end_ns
)
SELECT
    worker_id,
    state,
    count(*) AS readings,
    sum(to_ns - from_ns) / 1e9 AS read_s,
    -- in one order, so that the sum has the same last digit on any number of threads
    sum(busy_ratio * (to_ns - from_ns) ORDER BY to_ns, from_ns, busy_ratio)
        / nullif(sum(to_ns - from_ns) FILTER (busy_ratio IS NOT NULL), 0) AS busy_ratio,
    sum(sm_active_ratio * (to_ns - from_ns) ORDER BY to_ns, from_ns, sm_active_ratio)
        / nullif(sum(to_ns - from_ns) FILTER (sm_active_ratio IS NOT NULL), 0) AS sm_active_ratio
FROM placed
GROUP BY worker_id, state
ORDER BY worker_id, state
