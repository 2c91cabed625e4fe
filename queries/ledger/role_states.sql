-- Which states were the GPUs of each role in, by time bucket?
--
-- in   ledger
-- out  role             VARCHAR  role of the workers
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  state            VARCHAR  the ledger's state
-- out  reason           VARCHAR  reason for waiting; NULL for other states
-- out  gpu_ns           BIGINT   GPU-nanoseconds in the state
-- grain: one row per role, bucket, state and reason
-- partition: worker
-- merge: sum gpu_ns
SELECT role, bucket_start_ns, state, reason, sum(state_ns * gpu_count)::BIGINT AS gpu_ns
FROM ledger
GROUP BY role, bucket_start_ns, state, reason
ORDER BY role, bucket_start_ns, state, reason
