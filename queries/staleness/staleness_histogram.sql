-- How many trained tokens had each staleness, over the whole run?
--
-- in   token_staleness
-- out  staleness  BIGINT  consumer version minus the version that generated the token
-- out  tokens     BIGINT  response tokens, counted once per use
-- grain: one row per staleness
-- partition: driver
SELECT staleness, sum(tokens)::BIGINT AS tokens
FROM token_staleness
GROUP BY staleness
HAVING sum(tokens) > 0
ORDER BY staleness
