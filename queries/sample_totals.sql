-- What came of each sample, all its segments together?
--
-- in   samples
-- out  sample_id         VARCHAR  sample
-- out  group_id          VARCHAR  the samples of one prompt; NULL when not recorded
-- out  worker_id         VARCHAR  the engine of its last segment
-- out  prompt_tokens     INTEGER  prompt of its first segment
-- out  output_tokens     BIGINT   response tokens
-- out  started_ns        BIGINT   first scheduled, UTC epoch; NULL when not recorded
-- out  finished_ns       BIGINT   last token, UTC epoch
-- out  oldest_version    BIGINT   policy version of its oldest token; NULL without tokens
-- out  newest_version    BIGINT   policy version of its newest token
-- out  finish_reason     VARCHAR  of its last segment
-- grain: one row per sample
SELECT
    sample_id,
    any_value(group_id) AS group_id,
    arg_max(worker_id, segment) AS worker_id,
    arg_min(prompt_tokens, segment) AS prompt_tokens,
    sum(output_tokens)::BIGINT AS output_tokens,
    min(coalesce(started_ns, submitted_ns)) AS started_ns,
    max(finished_ns) AS finished_ns,
    min(list_min(list_transform(versions, lambda run: run.version))) AS oldest_version,
    max(list_max(list_transform(versions, lambda run: run.version))) AS newest_version,
    arg_max_null(finish_reason, segment) AS finish_reason
FROM samples
GROUP BY sample_id
ORDER BY sample_id
