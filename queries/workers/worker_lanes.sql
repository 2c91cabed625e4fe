-- Which lane does each worker have in the chart of all workers, and in the chart of the worst ones?
--
-- in   worker_states, worker_extents
-- arg  most_lanes     BIGINT   above this many workers (over 4), those of a role that waited similarly share a lane
-- arg  worst_workers  BIGINT   if workers share lanes, number of worst workers with a lane of their own in another view
-- out  view           VARCHAR  all, or worst_workers: those whose waiting cost most GPU time
-- out  lane           INTEGER  position in the view, from 0: trainers first, then by name, waiting or its cost
-- out  worker_id      VARCHAR  worker
-- out  worker_count   INTEGER  number of workers in the lane
-- out  waiting_ratio  DOUBLE   share of the lane's time spent waiting, over the whole run, 0..1
-- out  from_ns        BIGINT   earliest start of the lane's workers, UTC epoch
-- out  to_ns          BIGINT   their latest end, UTC epoch
-- grain: one row per view and worker
-- partition: driver
WITH totals AS (
    SELECT worker_id, role, any_value(gpu_count) AS gpu_count, sum(state_ns) AS worker_ns,
        coalesce(sum(state_ns) FILTER (is_waiting), 0) AS waiting_ns
    FROM worker_states
    GROUP BY worker_id, role
),
ranked AS (
    SELECT worker_id, role, worker_ns, waiting_ns,
        coalesce(list_position(['trainer', 'sampler', 'colocated'], role), 4) AS role_place,
        count(*) OVER () AS workers,
        count(*) OVER (PARTITION BY role) AS workers_of_role,
        row_number() OVER (PARTITION BY role ORDER BY waiting_ns / worker_ns DESC, worker_id) - 1 AS place_by_waiting,
        row_number() OVER (PARTITION BY role ORDER BY length(worker_id), worker_id) AS place_by_name,
        row_number() OVER (ORDER BY waiting_ns * gpu_count DESC, worker_id) AS place_by_cost,
        waiting_ns * gpu_count > 0 AS is_costly
    FROM totals
),
placed AS (
    -- Each role has a share of the lanes, and at least one.
    SELECT 'all' AS view, worker_id, role, role_place, worker_ns, waiting_ns,
        if(workers <= $most_lanes, place_by_name, place_by_waiting
            * greatest(1, ($most_lanes - 4) * workers_of_role // workers) // workers_of_role) AS place
    FROM ranked
    UNION ALL
    SELECT 'worst_workers', worker_id, role, role_place, worker_ns, waiting_ns, place_by_cost
    FROM ranked
    WHERE workers > $most_lanes AND place_by_cost <= $worst_workers AND is_costly
)
SELECT
    view,
    dense_rank() OVER (PARTITION BY view ORDER BY role_place, placed.role, place)::INTEGER - 1 AS lane,
    worker_id,
    count(*) OVER together::INTEGER AS worker_count,
    sum(waiting_ns) OVER together / (sum(worker_ns) OVER together)::DOUBLE AS waiting_ratio,
    min(start_ns) OVER together AS from_ns,
    max(end_ns) OVER together AS to_ns
FROM placed
JOIN worker_extents USING (worker_id)
WINDOW together AS (PARTITION BY view, role_place, placed.role, place)
ORDER BY view, lane, worker_id
