-- Where trainer and sampler should have the same weights, how far do their probabilities differ, version by version?
--
-- in   train_steps, delivered_samples, samples, weight_updates
-- out  version     BIGINT   policy version that sampled the tokens and trains on them
-- out  is_initial  BOOLEAN  whether it is the version of the run's first step, before which nothing was trained
-- out  tokens      BIGINT   fresh tokens: that version sampled them on a context that it computed too
-- out  gap         DOUBLE   mean of (w - 1)^2 over them, w the importance ratio; 0 for equal weights, but for rounding
-- grain: one row per version with a fresh token
--
-- A token of the newest version is not fresh when older weights computed a part of its KV cache. Where the trainer does
-- not say which tokens are fresh, those of staleness 0 count, from the steps in which each of them must be fresh.
-- Only the first step on a version counts: it changes the trainer's weights, and the next may come before they are
-- published again.
WITH first_steps AS (
    SELECT version_in, min(step) AS step FROM train_steps GROUP BY version_in
),
recomputing AS (
    SELECT worker_id FROM weight_updates WHERE phase = 'apply'
    GROUP BY worker_id HAVING bool_and(kv IS NOT DISTINCT FROM 'recomputed')
),
trained AS (
    SELECT
        step, is_recorded, version_source, len(versions) AS runs,
        coalesce(torn_tokens, 0) AS torn_tokens, coalesce(cached_tokens, 0) AS cached_tokens,
        worker_id IN (SELECT worker_id FROM recomputing) AS recomputes,
        list_contains(list_transform(versions, lambda run: run.version), consumer_version) AS has_newest
    FROM delivered_samples
    LEFT JOIN samples USING (sample_id)
    WHERE outcome = 'trained' AND step IS NOT NULL
),
fresh_steps AS (
    SELECT step
    FROM trained
    GROUP BY step
    HAVING bool_and(is_recorded AND (NOT has_newest OR (
        version_source IN ('engine', 'admission') AND torn_tokens = 0
        AND (recomputes OR (runs = 1 AND cached_tokens = 0))
    )))
),
newest AS (
    SELECT version_in, unnest(list_filter(importance, lambda moment: moment.staleness = 0)) AS moment
    FROM train_steps
    JOIN first_steps USING (version_in, step)
    WHERE fresh_tokens IS NULL AND step IN (SELECT step FROM fresh_steps)
),
moments AS (
    SELECT version_in AS version, fresh_tokens AS tokens, fresh_sum_w AS sum_w, fresh_sum_w2 AS sum_w2
    FROM train_steps
    JOIN first_steps USING (version_in, step)
    UNION ALL
    SELECT version_in, moment.tokens, moment.sum_w, moment.sum_w2 FROM newest
)
SELECT
    version,
    version = (SELECT min_by(version_in, step) FROM train_steps) AS is_initial,
    sum(tokens)::BIGINT AS tokens,
    greatest(0, (sum(sum_w2) - 2 * sum(sum_w) + sum(tokens)) / sum(tokens)) AS gap
FROM moments
WHERE tokens > 0 AND isfinite(sum_w) AND isfinite(sum_w2)
GROUP BY version
ORDER BY version
