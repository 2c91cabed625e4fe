-- What happened to the samples that left the queue in the interval?
--
-- Samples that are abandoned once the last step has begun are what a run leaves behind when it ends: they are not
-- counted.
--
-- in   delivered_samples
-- in   train_steps
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
    AND (outcome <> 'abandoned' OR taken_ns < coalesce((SELECT max(start_ns) FROM train_steps), $to_ns))
GROUP BY outcome
ORDER BY outcome
