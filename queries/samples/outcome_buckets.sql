-- What happened to the samples that left the queue, by time bucket?
--
-- in   delivered_samples
-- arg  origin_ns        BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns        BIGINT   length of a bucket
-- out  bucket_start_ns  BIGINT   start of the bucket, UTC epoch
-- out  outcome          VARCHAR  trained, dropped_stale, filtered or abandoned
-- out  samples          BIGINT   deliveries
-- out  tokens           BIGINT   response tokens, counted once per delivery
-- grain: one row per bucket and outcome
-- partition: sample
-- merge: sum samples, tokens
SELECT
    $origin_ns + (taken_ns - $origin_ns) // $bucket_ns * $bucket_ns AS bucket_start_ns,
    outcome,
    count(*) AS samples,
    coalesce(sum(output_tokens), 0)::BIGINT AS tokens
FROM delivered_samples
GROUP BY bucket_start_ns, outcome
ORDER BY bucket_start_ns, outcome
