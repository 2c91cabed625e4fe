-- What was each worker doing, by its own spans?
--
-- in   worker_extents, activities, train_steps, weight_updates
-- out  worker_id  VARCHAR  worker
-- out  gpu_count  INTEGER  its GPUs
-- out  start_ns   BIGINT   start, not before the worker's, UTC epoch
-- out  end_ns     BIGINT   end, not after the worker's
-- out  state      VARCHAR  the state; unattributed, or no_requests, for the whole time of the worker
-- out  reason     VARCHAR  reason for waiting; NULL for other states
-- out  layer      INTEGER  of spans with the same start and end, the one with the higher layer is inside
-- grain: one row per span, and one for the whole time of each worker, which is the outermost span
-- partition: worker
-- merge: concatenate
-- Trainers wait for samples; samplers have no requests. An auxiliary worker that records activities has no requests
-- outside them.
-- Parts of a weight update lie inside its publication or application, which has their time.
-- An engine that applies weights without a pause keeps generating; its rows record what it did meanwhile.
WITH extents AS (
    SELECT worker_id, role, gpu_count, has_rows, start_ns AS from_ns, end_ns AS to_ns FROM worker_extents
),
named AS (
    SELECT
        activities.worker_id, start_ns, end_ns, activities.reason, 2 AS layer,
        CASE
            WHEN activity = 'generate' THEN 'generating'
            WHEN activity = 'weight_update' THEN if(role = 'trainer', 'publishing_weights', 'applying_weights')
            WHEN activity <> 'wait' THEN activity
            WHEN role = 'auxiliary' AND activities.reason IS DISTINCT FROM 'weights' THEN 'no_requests'
            WHEN activities.reason = 'samples' AND role <> 'sampler' THEN 'waiting_for_samples'
            WHEN activities.reason = 'staleness_cap' AND role <> 'sampler' THEN 'waiting_for_staleness_cap'
            WHEN activities.reason IN ('requests', 'backpressure', 'barrier', 'environment', 'staleness_cap')
                AND role <> 'trainer' THEN 'no_requests'
            ELSE 'waiting'
        END AS state
    FROM activities JOIN extents USING (worker_id)
    UNION ALL
    SELECT worker_id, start_ns, end_ns, NULL, 1, 'train' FROM train_steps
    UNION ALL
    SELECT
        worker_id, start_ns, end_ns, NULL, 3,
        CASE phase
            WHEN 'publish' THEN 'publishing_weights'
            WHEN 'transfer' THEN 'transferring_weights'
            ELSE 'applying_weights'
        END
    FROM weight_updates JOIN extents USING (worker_id)
    WHERE phase IN ('publish', 'transfer', 'apply') AND NOT (phase = 'apply' AND paused IS FALSE AND has_rows)
    UNION ALL
    SELECT worker_id, from_ns, to_ns, NULL, 0,
        if(role = 'auxiliary' AND worker_id IN (SELECT worker_id FROM activities), 'no_requests', 'unattributed')
    FROM extents
)
SELECT
    named.worker_id,
    extents.gpu_count,
    greatest(named.start_ns, extents.from_ns) AS start_ns,
    least(named.end_ns, extents.to_ns) AS end_ns,
    named.state,
    named.reason,
    named.layer
FROM named
JOIN extents USING (worker_id)
WHERE greatest(named.start_ns, extents.from_ns) < least(named.end_ns, extents.to_ns)
ORDER BY named.worker_id, 3, 4, named.layer, named.state, named.reason
