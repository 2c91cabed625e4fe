-- Where do the versions of the trained tokens come from?
--
-- in   token_staleness
-- out  version_source  VARCHAR  engine, segment, time_join or admission, best first
-- out  tokens          BIGINT   response tokens, once per use
-- grain: one row per version source
SELECT version_source, sum(tokens)::BIGINT AS tokens
FROM token_staleness
GROUP BY version_source
ORDER BY array_position(['engine', 'segment', 'time_join', 'admission'], version_source), version_source
