-- When did the batch, the waiting requests and the KV cache of each engine, and the depth of each queue, change?
--
-- in   engine_steps, queue_depths
-- arg  idle_after_ns BIGINT   an engine without a row for this long has no batch
-- out  counter       VARCHAR  batch_size, waiting_requests or kv_used_tokens of an engine, or queue_depth
-- out  owner         VARCHAR  the engine, or the queue
-- out  time_ns       BIGINT   when it became the value, UTC epoch
-- out  value         BIGINT   requests, tokens or samples
-- grain: one row per change of one counter
-- partition: driver
--
-- The batch of an engine becomes 0 at the end of a row that no other row follows soon. Its other counters keep their
-- last value, because nothing new was read.
WITH rows AS (
    SELECT worker_id, start_ns, end_ns, running, waiting, kv_used_tokens,
        lead(start_ns) OVER (PARTITION BY worker_id ORDER BY start_ns, end_ns) AS next_ns
    FROM engine_steps
),
readings AS (
    SELECT 'batch_size' AS counter, worker_id AS owner, start_ns AS time_ns, running::BIGINT AS value FROM rows
    UNION ALL
    SELECT 'batch_size', worker_id, end_ns, 0 FROM rows WHERE next_ns IS NULL OR next_ns - end_ns >= $idle_after_ns
    UNION ALL SELECT 'waiting_requests', worker_id, start_ns, waiting::BIGINT FROM rows
    UNION ALL SELECT 'kv_used_tokens', worker_id, start_ns, kv_used_tokens FROM rows WHERE kv_used_tokens IS NOT NULL
    UNION ALL SELECT 'queue_depth', queue, time_ns, depth FROM queue_depths
)
SELECT counter, owner, time_ns, value
FROM readings
QUALIFY value IS DISTINCT FROM lag(value) OVER (PARTITION BY counter, owner ORDER BY time_ns, value DESC)
ORDER BY time_ns, counter, owner, value DESC
