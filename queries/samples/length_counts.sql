-- How many samples that started in the interval had each length?
--
-- in   sample_totals
-- arg  from_ns        BIGINT   start of the interval, UTC epoch
-- arg  to_ns          BIGINT   its end, exclusive
-- out  output_tokens  BIGINT   response length, tokens
-- out  ending         VARCHAR  finished, capped, or censored (aborted, failed or running; length is a lower bound)
-- out  samples        BIGINT   samples
-- out  prompt_tokens  BIGINT   total tokens of their prompts
-- out  added_tokens   DOUBLE   context that environments added, summed over the response tokens that it came before
-- grain: one row per length and ending
-- partition: sample
-- merge: sum samples, prompt_tokens, added_tokens
SELECT
    output_tokens,
    CASE coalesce(finish_reason, 'stop')
        WHEN 'length' THEN 'capped'
        WHEN 'abort' THEN 'censored'
        WHEN 'error' THEN 'censored'
        WHEN 'unfinished' THEN 'censored'
        ELSE 'finished'
    END AS ending,
    count(*) AS samples,
    sum(prompt_tokens)::BIGINT AS prompt_tokens,
    sum(added_tokens) * output_tokens AS added_tokens
FROM sample_totals
WHERE coalesce(started_ns, finished_ns) >= $from_ns AND coalesce(started_ns, finished_ns) < $to_ns
GROUP BY output_tokens, ending
ORDER BY output_tokens, ending
