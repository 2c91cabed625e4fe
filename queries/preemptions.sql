-- How often were requests put back for want of KV in the stretch looked at, and what was computed again for it?
--
-- in   engine_steps, samples
-- arg  from_ns         BIGINT  start of the stretch, UTC epoch
-- arg  to_ns           BIGINT  its end, not included
-- out  preemptions     BIGINT  requests put back; NULL when not recorded
-- out  prefill_tokens  BIGINT  prompt tokens that engines computed, those computed again among them
-- out  prompt_tokens   BIGINT  prompts of the segments that began, without what a cache is known to have spared
-- out  segments        BIGINT  segments that began
-- grain: one row
--
-- Tokens computed beyond the prompts were computed again: after a preemption, or after an update that drops the KV.
WITH rows AS (
    SELECT sum(preemptions) AS preemptions, sum(prefill_tokens) AS prefill_tokens
    FROM engine_steps
    WHERE start_ns >= $from_ns AND start_ns < $to_ns
),
begun AS (
    SELECT sum(prompt_tokens - coalesce(cached_tokens, 0)) AS prompt_tokens, count(*) AS segments
    FROM samples
    WHERE started_ns >= $from_ns AND started_ns < $to_ns
)
SELECT
    preemptions::BIGINT AS preemptions,
    coalesce(prefill_tokens, 0)::BIGINT AS prefill_tokens,
    coalesce(prompt_tokens, 0)::BIGINT AS prompt_tokens,
    segments
FROM rows CROSS JOIN begun
