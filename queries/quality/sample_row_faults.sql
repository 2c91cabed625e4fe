-- Which rows of samples and deliveries violate the trace format, and how many?
--
-- in   samples, deliveries, sample_totals, delivered_samples
-- out  table_name  VARCHAR  table
-- out  fault       VARCHAR  what is wrong with the rows
-- out  rows        BIGINT   number of such rows
-- grain: one row per table and fault with at least one row
-- partition: sample
-- merge: sum rows
WITH faults AS (
    SELECT 'samples' AS table_name, 'have version runs that do not cover their tokens' AS fault,
        count_if(coalesce(list_sum(list_transform(versions, lambda run: run."end" - run.start)), 0) <> output_tokens)
            AS rows
    FROM samples
    UNION ALL
    SELECT 'samples', 'have a version_source that the trace format does not know',
        count_if(version_source NOT IN ('engine', 'segment', 'time_join', 'admission'))
    FROM samples
    UNION ALL
    SELECT 'samples', 'share their sample_id and segment with another', coalesce(sum(rows), 0)
    FROM (
        SELECT count(*) AS rows
        FROM samples
        SEMI JOIN (SELECT sample_id FROM sample_totals WHERE segments > 1) AS resumed USING (sample_id)
        GROUP BY sample_id, segment HAVING count(*) > 1
    )
    UNION ALL
    SELECT 'deliveries', 'have an outcome that the trace format does not know',
        count_if(outcome NOT IN ('trained', 'dropped_stale', 'filtered', 'abandoned'))
    FROM deliveries
    UNION ALL
    SELECT 'deliveries', 'name a sample that was not recorded', count_if(NOT is_recorded) FROM delivered_samples
    UNION ALL
    SELECT 'deliveries', 'were trained without a consumer version', count(*)
    FROM delivered_samples WHERE outcome = 'trained' AND consumer_version IS NULL
    UNION ALL
    SELECT 'deliveries', 'were trained without a step', count(*)
    FROM delivered_samples WHERE outcome = 'trained' AND step IS NULL
    UNION ALL
    SELECT 'deliveries', 'were sampled by a later version than their step starts from (negative staleness)', count(*)
    FROM delivered_samples WHERE outcome = 'trained' AND newest_version > consumer_version
)
SELECT table_name, fault, rows::BIGINT AS rows
FROM faults
WHERE rows > 0
ORDER BY table_name, fault
