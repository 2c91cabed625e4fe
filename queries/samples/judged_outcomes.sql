-- What happened to the samples that left the queue in the interval?
--
-- in   delivered_samples
-- arg  from_ns        BIGINT   start of the interval, UTC epoch
-- arg  to_ns          BIGINT   its end, exclusive
-- out  outcome        VARCHAR  trained, dropped_stale, filtered or abandoned
-- out  samples        BIGINT   deliveries
-- out  tokens         BIGINT   response tokens, counted once per delivery
-- out  queued_tokens  BIGINT   those that were in the queue for some time
-- grain: one row per outcome
-- partition: sample
-- merge: sum samples, tokens, queued_tokens
SELECT
    outcome,
    count(*) AS samples,
    coalesce(sum(output_tokens), 0)::BIGINT AS tokens,
    coalesce(sum(output_tokens) FILTER (queued_ns < taken_ns), 0)::BIGINT AS queued_tokens
FROM delivered_samples
WHERE taken_ns >= $from_ns AND taken_ns < $to_ns
GROUP BY outcome
ORDER BY outcome
