-- Which rows contradict the format, and how many are there?
--
-- in   workers, worker_extents, samples, deliveries, engine_steps, train_steps, weight_updates, activities
-- out  table_name  VARCHAR  table
-- out  fault       VARCHAR  what is wrong with the rows
-- out  rows        BIGINT   how many
-- grain: one row per table and fault with at least one row
WITH timed AS (
    SELECT 'engine_steps' AS table_name, worker_id, start_ns, end_ns FROM engine_steps
    UNION ALL SELECT 'train_steps', worker_id, start_ns, end_ns FROM train_steps
    UNION ALL SELECT 'weight_updates', worker_id, start_ns, end_ns FROM weight_updates
    UNION ALL SELECT 'activities', worker_id, start_ns, end_ns FROM activities
),
faults AS (
    SELECT table_name, 'end before their start' AS fault, count_if(end_ns < start_ns) AS rows
    FROM timed GROUP BY table_name
    UNION ALL
    SELECT table_name, 'belong to a worker without a readable worker file', count_if(worker_extents.worker_id IS NULL)
    FROM timed LEFT JOIN worker_extents USING (worker_id) GROUP BY table_name
    UNION ALL
    SELECT table_name, 'reach outside their worker''s start and end (cut there)',
        count_if(timed.start_ns < worker_extents.start_ns OR timed.end_ns > worker_extents.end_ns)
    FROM timed JOIN worker_extents USING (worker_id) GROUP BY table_name
    UNION ALL
    SELECT 'engine_steps', 'put several passes into more than one second',
        count_if(end_ns - start_ns > 1000000000 AND forward_passes > 1)
    FROM engine_steps
    UNION ALL
    SELECT 'engine_steps', 'were busy for longer than they lasted', count_if(busy_ns > end_ns - start_ns)
    FROM engine_steps
    UNION ALL
    SELECT 'samples', 'have version runs that do not cover their tokens',
        count_if(coalesce(list_sum(list_transform(versions, lambda run: run."end" - run.start)), 0) <> output_tokens)
    FROM samples
    UNION ALL
    SELECT 'samples', 'belong to a worker without a readable worker file', count_if(worker_extents.worker_id IS NULL)
    FROM samples LEFT JOIN worker_extents USING (worker_id)
    UNION ALL
    SELECT 'deliveries', 'name a sample that was not recorded', count(*)
    FROM deliveries ANTI JOIN samples USING (sample_id)
    UNION ALL
    SELECT 'deliveries', 'were trained without a consumer version', count(*)
    FROM deliveries ANTI JOIN train_steps USING (step)
    WHERE outcome = 'trained' AND consumer_version IS NULL
)
SELECT table_name, fault, rows::BIGINT AS rows
FROM faults
WHERE rows > 0
ORDER BY table_name, fault
