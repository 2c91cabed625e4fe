-- Are each engine's rows stored in order and without overlap?
--
-- in   engine_steps
-- out  rows           BIGINT   rows examined
-- out  rows_disjoint  BOOLEAN  true if no two rows of an engine can overlap; false if some do or it is unknown
-- out  row_ns         DOUBLE   total length of the rows: longer than the run if they overlap
-- grain: one row
-- partition: worker
-- merge: sum rows, row_ns; all rows_disjoint
--
-- This holds in any read order: if neighbors never overlap and every worker's rows are contiguous, no two rows of a
-- worker overlap.
WITH neighbors AS (
    SELECT worker_id, start_ns, end_ns,
        lag(worker_id) OVER () AS previous_worker_id, lag(end_ns) OVER () AS previous_end_ns
    FROM engine_steps
)
SELECT
    count(*) AS rows,
    count(*) FILTER (worker_id IS DISTINCT FROM previous_worker_id) = count(DISTINCT worker_id)
        AND count(*) FILTER (worker_id = previous_worker_id AND start_ns < previous_end_ns) = 0
        AND count(*) FILTER (end_ns < start_ns) = 0 AS rows_disjoint,
    coalesce(sum(greatest(0, end_ns - start_ns)), 0)::DOUBLE AS row_ns
FROM neighbors
