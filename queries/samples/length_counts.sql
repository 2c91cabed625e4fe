-- How many samples that began in the stretch that is looked at had each length?
--
-- in   sample_totals
-- arg  from_ns        BIGINT   start of the stretch, UTC epoch
-- arg  to_ns          BIGINT   its end, not included
-- out  output_tokens  BIGINT   response length, tokens
-- out  ending         VARCHAR  finished, capped, or censored: aborted, failed or still running, at least that long
-- out  samples        BIGINT   samples
-- out  prompt_tokens  BIGINT   tokens of their prompts, all together
-- grain: one row per length and ending
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
    sum(prompt_tokens)::BIGINT AS prompt_tokens
FROM sample_totals
WHERE coalesce(started_ns, finished_ns) >= $from_ns AND coalesce(started_ns, finished_ns) < $to_ns
GROUP BY output_tokens, ending
ORDER BY output_tokens, ending
