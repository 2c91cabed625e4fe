-- How often were requests put back for want of KV in the stretch looked at, and what was computed again for it?
--
-- in   engine_steps, samples, weight_updates
-- arg  from_ns         BIGINT  start of the stretch, UTC epoch
-- arg  to_ns           BIGINT  its end, not included
-- out  preemptions     BIGINT  requests put back; NULL when not recorded
-- out  prefill_tokens  BIGINT  prompt tokens that engines computed, those computed again among them
-- out  prompt_tokens   BIGINT  prompts of the segments that began, without what a cache is known to have spared
-- out  segments        BIGINT  segments that began
-- grain: one row
--
-- Tokens computed beyond the prompts were computed again: after a preemption, or after an update that drops the KV.
-- Such an update puts back all that run, and the engine counts them in its next row: those are not for want of KV.
WITH steps AS (
    SELECT *, lag(end_ns) OVER (PARTITION BY worker_id ORDER BY start_ns) AS last_end_ns FROM engine_steps
),
drops AS (SELECT worker_id, end_ns AS dropped_ns FROM weight_updates WHERE kv = 'recomputed'),
rows AS (
    SELECT
        sum(preemptions) FILTER (dropped_ns IS NULL OR dropped_ns <= last_end_ns) AS preemptions,
        count(preemptions) AS counted,
        sum(prefill_tokens) AS prefill_tokens
    FROM steps ASOF LEFT JOIN drops ON drops.worker_id = steps.worker_id AND drops.dropped_ns <= steps.end_ns
    WHERE start_ns >= $from_ns AND start_ns < $to_ns
),
begun AS (
    SELECT sum(prompt_tokens - coalesce(cached_tokens, 0)) AS prompt_tokens, count(*) AS segments
    FROM samples
    WHERE started_ns >= $from_ns AND started_ns < $to_ns
)
SELECT
    if(counted > 0, coalesce(preemptions, 0), NULL)::BIGINT AS preemptions,
    coalesce(prefill_tokens, 0)::BIGINT AS prefill_tokens,
    coalesce(prompt_tokens, 0)::BIGINT AS prompt_tokens,
    segments
FROM rows CROSS JOIN begun
