-- How many response tokens were generated and trained per second, over time?
--
-- in   training_steps, engine_buckets
-- arg  origin_ns               BIGINT  start of the first bucket, UTC epoch
-- arg  bucket_ns               BIGINT  length of a bucket
-- out  bucket_start_ns         BIGINT  start of the bucket, UTC epoch
-- out  trained_tokens_per_s    DOUBLE  tokens of the steps that ended in the bucket, over its length
-- out  generated_tokens_per_s  DOUBLE  tokens of the engine rows that started in the bucket, over its length
-- grain: one row per bucket in which a step ended or an engine row started
-- partition: driver
WITH trained AS (
    SELECT (end_ns - $origin_ns) // $bucket_ns AS bucket, sum(response_tokens) AS tokens
    FROM training_steps
    GROUP BY bucket
),
generated AS (
    SELECT (bucket_start_ns - $origin_ns) // $bucket_ns AS bucket, sum(decode_tokens) AS tokens
    FROM engine_buckets
    GROUP BY bucket
)
SELECT
    $origin_ns + bucket * $bucket_ns AS bucket_start_ns,
    coalesce(trained.tokens, 0) / ($bucket_ns / 1e9) AS trained_tokens_per_s,
    coalesce(generated.tokens, 0) / ($bucket_ns / 1e9) AS generated_tokens_per_s
FROM trained
FULL JOIN generated USING (bucket)
ORDER BY bucket_start_ns
