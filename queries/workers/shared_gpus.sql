-- Which GPUs did workers of two roles name as theirs at the same time?
--
-- in   workers, worker_extents
-- out  gpu_id           VARCHAR  the GPU's UUID, or its index on the host
-- out  worker_id        VARCHAR  a worker that named it
-- out  role             VARCHAR  its role
-- out  other_worker_id  VARCHAR  a worker of another role that named it too
-- out  other_role       VARCHAR  that one's role
-- out  start_ns         BIGINT   from when on both ran, UTC epoch
-- out  end_ns           BIGINT   until when, UTC epoch
-- out  shared_ratio     DOUBLE   share of the shorter worker's time in which both ran, 0..1
-- grain: one row per GPU and pair of workers that ran at the same time
-- partition: driver
--
-- A UUID is one GPU wherever it is named; an index is one only on its host.
WITH named AS (
    SELECT DISTINCT worker_id, worker_extents.role, worker_extents.host, start_ns, end_ns, unnest(gpu_ids) AS gpu_id
    FROM workers
    JOIN worker_extents USING (worker_id)
    WHERE worker_extents.gpu_count > 0
),
pairs AS (
    SELECT
        one.gpu_id, one.worker_id, one.role, other.worker_id AS other_worker_id, other.role AS other_role,
        greatest(one.start_ns, other.start_ns) AS start_ns, least(one.end_ns, other.end_ns) AS end_ns,
        least(one.end_ns - one.start_ns, other.end_ns - other.start_ns) AS shorter_ns
    FROM named AS one
    JOIN named AS other
        ON one.gpu_id = other.gpu_id AND one.role > other.role
        AND (one.host = other.host OR starts_with(one.gpu_id, 'GPU-') OR starts_with(one.gpu_id, 'MIG-'))
)
SELECT gpu_id, worker_id, role, other_worker_id, other_role, start_ns, end_ns,
    (end_ns - start_ns) / shorter_ns::DOUBLE AS shared_ratio
FROM pairs
WHERE start_ns < end_ns
ORDER BY gpu_id, worker_id, other_worker_id
