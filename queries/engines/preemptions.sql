-- How often were requests preempted for lack of KV cache in the interval, and how much was recomputed?
--
-- in   engine_steps, workers, samples, weight_updates
-- arg  from_ns         BIGINT  start of the interval, UTC epoch
-- arg  to_ns           BIGINT  its end, exclusive
-- out  preemptions     BIGINT  preempted requests; NULL if not recorded
-- out  prefill_tokens  BIGINT  prompt tokens computed by the engines, including recomputed ones
-- out  prompt_tokens   BIGINT  prompt tokens of the segments that started, minus known prefix-cache hits
-- out  segments        BIGINT  segments that started
-- grain: one row
-- partition: worker
-- merge: sum preemptions, prefill_tokens, prompt_tokens, segments
--
-- Tokens computed beyond the prompts were recomputed: after a preemption, or after an update that drops the KV cache.
-- Such an update preempts all running requests. The engine counts them in its next row; they are excluded here.
WITH drops AS (SELECT worker_id, end_ns AS dropped_ns FROM weight_updates WHERE kv = 'recomputed'),
steps AS (
    SELECT *, lag(end_ns) OVER (PARTITION BY worker_id ORDER BY start_ns) AS last_end_ns
    FROM policy_rows()
    -- sorting all rows takes the most time, and most runs drop no KV cache
    WHERE worker_id IN (SELECT worker_id FROM drops)
),
dropped AS (
    SELECT sum(preemptions) AS preemptions
    FROM steps ASOF JOIN drops ON drops.worker_id = steps.worker_id AND drops.dropped_ns <= steps.end_ns
    WHERE start_ns >= $from_ns AND start_ns < $to_ns AND NOT coalesce(dropped_ns <= last_end_ns, FALSE)
),
rows AS (
    SELECT
        sum(preemptions) - coalesce((SELECT preemptions FROM dropped), 0) AS preemptions,
        count(preemptions) AS counted,
        sum(prefill_tokens) AS prefill_tokens
    FROM policy_rows()
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
