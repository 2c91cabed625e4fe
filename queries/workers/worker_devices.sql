-- Which device does each worker run on, and how many requests can it run at once?
--
-- in   workers
-- out  worker_id            VARCHAR  worker
-- out  role                 VARCHAR  sampler, trainer, colocated, auxiliary or controller
-- out  gpu_count            INTEGER  its GPUs
-- out  device_name          VARCHAR  GPU model; NULL if not recorded
-- out  kv_capacity_tokens   BIGINT   capacity of its KV cache; NULL if not recorded
-- out  max_running          INTEGER  limit on running requests; NULL if not recorded
-- grain: one row per worker
-- partition: driver
SELECT worker_id, role, gpu_count, device_name, kv_capacity_tokens, max_running
FROM workers
ORDER BY worker_id
