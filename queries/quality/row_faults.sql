-- Which rows violate the trace format, and how many?
--
-- in   worker_row_faults, sample_row_faults, samples, deliveries, train_steps
-- out  table_name  VARCHAR  table
-- out  fault       VARCHAR  what is wrong with the rows
-- out  rows        BIGINT   number of such rows
-- grain: one row per table and fault with at least one row
-- partition: driver
SELECT table_name, fault, rows FROM worker_row_faults
UNION ALL
SELECT table_name, fault, rows FROM sample_row_faults
UNION ALL
SELECT 'deliveries', 'name a step, and none of these steps is in train_steps', count(step)
FROM deliveries
HAVING count(step) > 0 AND EXISTS (SELECT 1 FROM train_steps)
    AND NOT bool_or(step IN (SELECT step FROM train_steps))
UNION ALL
SELECT 'deliveries', 'name another consumer_version than the version_in of their step: staleness may be wrong', count(*)
FROM deliveries
JOIN (SELECT step, min(version_in) AS least, max(version_in) AS most FROM train_steps GROUP BY step) USING (step)
WHERE outcome = 'trained' AND consumer_version NOT BETWEEN least AND most
HAVING count(*) > 0
UNION ALL
SELECT
    'train_steps', 'count more samples than their share: a rank passes the samples that it trains on itself',
    sum(rows)::BIGINT
FROM (
    SELECT step, count(*) AS rows, sum(samples) AS samples FROM train_steps
    GROUP BY step HAVING count(DISTINCT worker_id) > 1
)
JOIN (SELECT step, count(*) AS delivered FROM deliveries WHERE outcome = 'trained' GROUP BY step) USING (step)
WHERE samples >= 2 * delivered
HAVING count(*) > 0
UNION ALL
SELECT 'samples', 'have no tokens, and no other has any: pass them to handle.tokens(count, version)', count(*)
FROM samples
HAVING count(*) > 0 AND sum(output_tokens) = 0
ORDER BY table_name, fault
