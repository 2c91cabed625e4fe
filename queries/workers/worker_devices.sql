-- What does each worker run on, and how much may it run at once?
--
-- in   workers
-- out  worker_id            VARCHAR  worker
-- out  role                 VARCHAR  sampler, trainer, colocated or controller
-- out  gpu_count            INTEGER  GPUs it owns
-- out  device_name          VARCHAR  its kind of GPU; NULL when not recorded
-- out  kv_capacity_tokens   BIGINT   what its KV cache can hold; NULL when not recorded
-- out  max_running          INTEGER  most requests it may run; NULL when not recorded
-- grain: one row per worker
SELECT worker_id, role, gpu_count, device_name, kv_capacity_tokens, max_running
FROM workers
ORDER BY worker_id
