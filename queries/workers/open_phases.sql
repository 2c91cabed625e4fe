-- What was each worker in the middle of when it was last heard, and for how long did such a phase last before?
--
-- in   longest_phases, workers, worker_extents
-- out  worker_id    VARCHAR  worker
-- out  role         VARCHAR  its role
-- out  is_over      BOOLEAN  whether no more data is due from it: it recorded its stop, or was started again
-- out  heard_ns     BIGINT   its last flush or row, UTC epoch
-- out  last_row_ns  BIGINT   end of its last row; NULL without rows
-- out  doing        VARCHAR  an activity, train, or publish, transfer or apply of weights; NULL if nothing was open
-- out  reason       VARCHAR  reason for waiting; NULL for other phases
-- out  version      BIGINT   version of the weights; NULL for other phases
-- out  age_ns       BIGINT   how long it had lasted at the last flush
-- out  longest_ns   BIGINT   longest phase of that kind that a worker of the role ended; NULL if none did
-- grain: one row per worker and open phase, and one per worker without any
-- partition: driver
WITH opened AS (
    SELECT worker_id, unnest(open, recursive := true) FROM workers
)
SELECT
    extents.worker_id, extents.role, is_over, extents.end_ns AS heard_ns, last_row_ns,
    opened.doing, opened.reason, opened.version, opened.age_ns, longest_ns
FROM worker_extents AS extents
LEFT JOIN opened USING (worker_id)
LEFT JOIN longest_phases AS longest
    ON longest.role = extents.role AND longest.doing = opened.doing AND longest.reason IS NOT DISTINCT FROM opened.reason
ORDER BY extents.worker_id, opened.age_ns DESC, opened.doing, opened.reason
