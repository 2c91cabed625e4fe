-- How many trained tokens were how many versions old, over the whole run?
--
-- in   token_staleness
-- out  staleness  BIGINT  consumer version minus the version that sampled the token
-- out  tokens     BIGINT  response tokens, once per use
-- grain: one row per staleness
SELECT staleness, sum(tokens)::BIGINT AS tokens
FROM token_staleness
GROUP BY staleness
HAVING sum(tokens) > 0
ORDER BY staleness
