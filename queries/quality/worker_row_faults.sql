-- Which rows of workers violate the trace format, and how many?
--
-- in   worker_extents, samples, engine_steps, train_steps, weight_updates, activities
-- out  table_name  VARCHAR  table
-- out  fault       VARCHAR  what is wrong with the rows
-- out  rows        BIGINT   number of such rows
-- grain: one row per table and fault with at least one row
-- partition: worker
-- merge: sum rows
WITH timed AS (
    SELECT 'engine_steps' AS table_name, worker_id, start_ns, end_ns, busy_ns,
        if(source = 'log', NULL, forward_passes) AS forward_passes
    FROM engine_steps
    UNION ALL SELECT 'train_steps', worker_id, start_ns, end_ns, NULL, NULL FROM train_steps
    UNION ALL SELECT 'weight_updates', worker_id, start_ns, end_ns, NULL, NULL FROM weight_updates
    UNION ALL SELECT 'activities', worker_id, start_ns, end_ns, NULL, NULL FROM activities
),
counts AS (
    SELECT
        table_name,
        count_if(timed.end_ns < timed.start_ns) AS turned_rows,
        count_if(worker_extents.worker_id IS NULL) AS stray_rows,
        count_if(timed.start_ns < worker_extents.start_ns OR timed.end_ns > worker_extents.end_ns) AS outside_rows,
        count_if(timed.end_ns - timed.start_ns > 1000000000 AND forward_passes > 1) AS long_rows,
        count_if(busy_ns > timed.end_ns - timed.start_ns) AS overfull_rows
    FROM timed
    LEFT JOIN worker_extents USING (worker_id)
    GROUP BY table_name
),
faults AS (
    SELECT table_name, 'end before their start' AS fault, turned_rows AS rows FROM counts
    UNION ALL
    SELECT table_name, 'belong to a worker without a readable worker file', stray_rows FROM counts
    UNION ALL
    SELECT table_name, 'reach outside their worker''s start and end (cut there)', outside_rows FROM counts
    UNION ALL
    SELECT table_name, 'put several passes into more than one second', long_rows FROM counts
    UNION ALL
    SELECT table_name, 'were busy for longer than they lasted', overfull_rows FROM counts
    UNION ALL
    SELECT 'samples', 'belong to a worker without a readable worker file', count_if(worker_extents.worker_id IS NULL)
    FROM samples LEFT JOIN worker_extents USING (worker_id)
    UNION ALL
    SELECT 'weight_updates', 'have a phase that the trace format does not know',
        count_if(phase NOT IN (
            'publish', 'transfer', 'apply', 'drain', 'gather', 'convert', 'install', 'resume'
        ))
    FROM weight_updates
    UNION ALL
    SELECT 'activities', 'have an activity that the trace format does not know',
        count_if(activity NOT IN (
            'startup', 'generate', 'train', 'logprobs', 'wait', 'weight_update', 'checkpoint', 'eval', 'reward', 'other'
        ))
    FROM activities
    UNION ALL
    SELECT 'activities', 'wait for a reason that the trace format does not know', count_if(activity = 'wait' AND reason
        NOT IN ('samples', 'staleness_cap', 'requests', 'backpressure', 'barrier', 'environment', 'weights'))
    FROM activities
    UNION ALL
    -- a request gets a token per pass, or several with speculative decoding
    SELECT 'engine_steps', 'have decode_tokens far from running times forward_passes',
        count_if(2 * decode_tokens < running::BIGINT * forward_passes)
            + count_if(decode_tokens > 16 * running::BIGINT * forward_passes)
    FROM engine_steps WHERE prefill_tokens = 0 AND coalesce(source, 'measured') = 'measured'
    UNION ALL
    SELECT 'train_steps', 'end during a forward pass of the same worker: record it as two workers, one that samples '
            || 'and one that trains', count_if(train_steps.end_ns < passes.end_ns)
    FROM train_steps
    ASOF JOIN (
        SELECT worker_id, start_ns, end_ns FROM engine_steps
        WHERE worker_id IN (SELECT worker_id FROM train_steps) AND coalesce(source, 'measured') = 'measured'
    ) AS passes ON train_steps.worker_id = passes.worker_id AND train_steps.end_ns > passes.start_ns
)
SELECT table_name, fault, rows::BIGINT AS rows
FROM faults
WHERE rows > 0
ORDER BY table_name, fault
