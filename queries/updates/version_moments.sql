-- How widely are the importance ratios spread, by token staleness?
--
-- in   train_steps
-- out  staleness          INTEGER  versions
-- out  tokens             BIGINT   tokens
-- out  ratio_mean         DOUBLE   mean importance ratio w
-- out  ratio_variance     DOUBLE   variance of w
-- out  effective_share_ratio DOUBLE effective sample size over tokens, (sum w)^2 / (n sum w^2), 0..1
-- grain: one row per staleness
-- partition: driver
WITH moments AS (
    SELECT unnest(importance, recursive := true) FROM train_steps
)
SELECT
    staleness,
    sum(tokens)::BIGINT AS tokens,
    sum(sum_w) / sum(tokens) AS ratio_mean,
    greatest(0, sum(sum_w2) / sum(tokens) - power(sum(sum_w) / sum(tokens), 2)) AS ratio_variance,
    power(sum(sum_w), 2) / nullif(sum(tokens) * sum(sum_w2), 0) AS effective_share_ratio
FROM moments
GROUP BY staleness
HAVING sum(tokens) > 0
ORDER BY staleness
