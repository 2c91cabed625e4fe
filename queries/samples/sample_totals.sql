-- What is known about each sample, over all its segments?
--
-- in   samples
-- out  sample_id         VARCHAR  sample
-- out  group_id          VARCHAR  the samples of one prompt; NULL if not recorded
-- out  worker_id         VARCHAR  engine of its last segment
-- out  prompt_tokens     INTEGER  prompt of its first segment
-- out  output_tokens     BIGINT   response tokens
-- out  added_tokens      DOUBLE   context that is neither prompt nor response, such as tool outputs: mean over response tokens
-- out  segments          BIGINT   its segments: above 1 if it was resumed
-- out  submitted_ns      BIGINT   first submitted, UTC epoch; NULL if not recorded
-- out  started_ns        BIGINT   first scheduled, UTC epoch; submitted if that is not recorded, NULL if neither is
-- out  finished_ns       BIGINT   last token, UTC epoch
-- out  oldest_version    BIGINT   policy version of its oldest token; NULL without tokens
-- out  newest_version    BIGINT   policy version of its newest token
-- out  finish_reason     VARCHAR  of its last segment
-- out  outside_ns        BIGINT   time outside the engines, recorded or between two segments; NULL if unknown
-- grain: one row per sample, in no order
-- partition: sample
-- merge: concatenate
--
-- Between two segments, a sample waits for a tool or environment. If the first one was cut off, it waits to go on
-- instead, which does not count.
WITH resumed AS MATERIALIZED (
    SELECT sample_id FROM samples GROUP BY sample_id HAVING count(*) > 1
),
segments AS (
    SELECT sample_id, segment, group_id, worker_id, prompt_tokens, output_tokens::BIGINT AS output_tokens,
        submitted_ns, coalesce(started_ns, submitted_ns) AS started_ns, finished_ns,
        list_min(list_transform(versions, lambda run: run.version)) AS oldest_version,
        list_max(list_transform(versions, lambda run: run.version)) AS newest_version,
        finish_reason, env_wait_ns
    FROM samples
),
turns AS (
    SELECT *, if(
        finish_reason IN ('abort', 'error', 'length'), NULL,
        lead(coalesce(submitted_ns, started_ns)) OVER by_segment - finished_ns
    ) AS gap_ns,
    greatest(
        prompt_tokens - first_value(prompt_tokens) OVER by_segment
            - (sum(output_tokens) OVER by_segment - output_tokens),
        0
    ) AS added_before
    FROM segments
    SEMI JOIN resumed USING (sample_id)
    WINDOW by_segment AS (PARTITION BY sample_id ORDER BY segment)
)
SELECT sample_id, group_id, worker_id, prompt_tokens, output_tokens, 0.0 AS added_tokens, 1 AS segments, submitted_ns,
    started_ns, finished_ns, oldest_version, newest_version, finish_reason,
    env_wait_ns AS outside_ns
FROM segments
ANTI JOIN resumed USING (sample_id)
UNION ALL
SELECT
    sample_id,
    any_value(group_id),
    arg_max(worker_id, segment),
    arg_min(prompt_tokens, segment),
    sum(output_tokens)::BIGINT,
    coalesce(sum(output_tokens * added_before) / nullif(sum(output_tokens), 0), 0)::DOUBLE,
    count(*),
    min(submitted_ns),
    min(started_ns),
    max(finished_ns),
    min(oldest_version),
    max(newest_version),
    arg_max_null(finish_reason, segment),
    (sum(greatest(coalesce(env_wait_ns, 0) + coalesce(gap_ns, 0), 0))
        FILTER (env_wait_ns IS NOT NULL OR gap_ns IS NOT NULL))::BIGINT
FROM turns
GROUP BY sample_id
