-- What is the source of the trained tokens' versions?
--
-- in   token_staleness
-- out  version_source  VARCHAR  engine, segment, time_join or admission, most reliable first
-- out  tokens          BIGINT   response tokens, counted once per use
-- grain: one row per version source
-- partition: driver
SELECT version_source, sum(tokens)::BIGINT AS tokens
FROM token_staleness
GROUP BY version_source
ORDER BY array_position(['engine', 'segment', 'time_join', 'admission'], version_source), version_source
