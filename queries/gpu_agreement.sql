-- While the hooks say a worker was busy, did its GPU run anything?
--
-- in   gpu_samples, gpu_activity
-- out  worker_id       VARCHAR  worker
-- out  state           VARCHAR  the ledger's state; the passes of an engine are one state, engine_rows
-- out  readings        BIGINT   GPU readings whose whole period lies in the state
-- out  read_s          DOUBLE   time that they cover, seconds
-- out  busy_ratio      DOUBLE   share of that time in which a kernel ran, 0..1; NULL when not read
-- out  sm_active_ratio DOUBLE   share of it and of the SMs with a warp resident, 0..1; NULL when not read
-- grain: one row per worker and state with a reading
WITH readings AS (
    SELECT worker_id, gpu_id, busy_ratio, sm_active_ratio, time_ns AS to_ns,
        lag(time_ns) OVER (PARTITION BY worker_id, gpu_id ORDER BY time_ns) AS from_ns
    FROM gpu_samples
),
classed AS (
    SELECT worker_id, start_ns, end_ns,
        if(state IN ('decoding', 'prefilling', 'mixed_passes', 'other_passes'), 'engine_rows', state) AS state
    FROM gpu_activity
),
shares AS (
    SELECT readings.worker_id, gpu_id, from_ns, to_ns, busy_ratio, sm_active_ratio, state,
        sum(least(end_ns, to_ns) - greatest(start_ns, from_ns)) AS share_ns
    FROM readings
    JOIN classed
        ON readings.worker_id = classed.worker_id AND start_ns < to_ns AND end_ns > from_ns
    WHERE from_ns < to_ns
    GROUP BY ALL
)
SELECT
    worker_id,
    state,
    count(*) AS readings,
    sum(to_ns - from_ns) / 1e9 AS read_s,
    sum(busy_ratio * (to_ns - from_ns)) / nullif(sum(to_ns - from_ns) FILTER (busy_ratio IS NOT NULL), 0) AS busy_ratio,
    sum(sm_active_ratio * (to_ns - from_ns)) / nullif(sum(to_ns - from_ns) FILTER (sm_active_ratio IS NOT NULL), 0)
        AS sm_active_ratio
FROM shares
WHERE share_ns = to_ns - from_ns
GROUP BY worker_id, state
ORDER BY worker_id, state
