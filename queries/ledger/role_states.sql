-- Which states were the GPUs of each role in, by time bucket?
--
-- in   ledger
-- out  role             VARCHAR  role of the workers
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  state            VARCHAR  the ledger's state
-- out  reason           VARCHAR  reason for waiting; NULL for other states
-- out  worker_id        VARCHAR  worker of the role auxiliary; NULL for other roles
-- out  gpu_ns           BIGINT   GPU-nanoseconds in the state
-- grain: one row per role, bucket, state, reason and auxiliary worker
-- partition: worker
-- merge: sum gpu_ns
WITH told AS (
    SELECT role, bucket_start_ns, state, reason, if(role = 'auxiliary', worker_id, NULL) AS worker_id,
        state_ns * gpu_count AS gpu_ns
    FROM ledger
)
SELECT role, bucket_start_ns, state, reason, worker_id, sum(gpu_ns)::BIGINT AS gpu_ns
FROM told
GROUP BY role, bucket_start_ns, state, reason, worker_id
ORDER BY role, bucket_start_ns, state, reason, worker_id
