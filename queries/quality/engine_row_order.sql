-- Do the rows of each engine stand one after the other, none overlapping the next, in the order they are stored?
--
-- in   engine_steps
-- out  rows           BIGINT   rows looked at
-- out  rows_disjoint  BOOLEAN  true when no two rows of an engine can overlap; false when some do or it cannot be told
-- grain: one row
--
-- Holds whatever order the rows are read in: if neighbours never overlap and every worker's rows stand together,
-- no two rows of a worker overlap.
WITH neighbours AS (
    SELECT worker_id, start_ns, end_ns,
        lag(worker_id) OVER () AS previous_worker_id, lag(end_ns) OVER () AS previous_end_ns
    FROM engine_steps
)
SELECT
    count(*) AS rows,
    count(*) FILTER (worker_id IS DISTINCT FROM previous_worker_id) = count(DISTINCT worker_id)
        AND count(*) FILTER (worker_id = previous_worker_id AND start_ns < previous_end_ns) = 0
        AND count(*) FILTER (end_ns < start_ns) = 0 AS rows_disjoint
FROM neighbours
