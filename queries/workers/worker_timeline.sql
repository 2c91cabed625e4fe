-- What did each worker, or group of similar workers, do over time, and when and where was waiting worst?
--
-- in   worker_states, worker_lanes
-- arg  origin_ns       BIGINT   start of the first bucket, UTC epoch
-- arg  bucket_ns       BIGINT   length of a bucket
-- arg  most_marks      BIGINT   if lanes times buckets exceed this, neighboring buckets are merged
-- arg  worst_ns        BIGINT   length of the worst interval; at most a tenth of the run, but at least four buckets
-- out  view            VARCHAR  all, worst_stretch (in which waiting cost most GPU time) or worst_workers
-- out  lane            INTEGER  position in the view, from 0
-- out  role            VARCHAR  role of the workers of the lane
-- out  worker_id       VARCHAR  the worker; NULL if several share the lane
-- out  worker_count    INTEGER  number of workers in the lane
-- out  waiting_ratio   DOUBLE   share of the lane's time spent waiting, over the whole run, 0..1
-- out  start_ns        BIGINT   start of the interval, UTC epoch
-- out  end_ns          BIGINT   its end, UTC epoch
-- out  state           VARCHAR  a state that it was in
-- out  reason          VARCHAR  reason for waiting; NULL for other states
-- out  share_ratio     DOUBLE   share of the interval in the state, 0..1
-- out  part_ns         BIGINT   length of a part, made of one or more buckets
-- grain: one row per view, lane, sequence of parts whose states have the same shares to a tenth, state and reason
-- partition: driver
--
-- A state below 5% of a part is left out of it, unless it is the largest.
WITH costs AS (
    SELECT bucket, coalesce(sum(state_ns * gpu_count) FILTER (is_waiting), 0) AS waiting_gpu_ns,
        greatest(4, least($worst_ns // $bucket_ns, (max(bucket) OVER () - min(bucket) OVER () + 1) // 10)) AS buckets
    FROM worker_states
    GROUP BY bucket
),
worst AS (
    SELECT greatest(bucket - buckets + 1, min(bucket) OVER ()) AS first_bucket, bucket AS last_bucket,
        sum(waiting_gpu_ns) OVER (ORDER BY bucket RANGE BETWEEN buckets - 1 PRECEDING AND CURRENT ROW) AS lost_gpu_ns
    FROM costs
    QUALIFY lost_gpu_ns > 0
    ORDER BY lost_gpu_ns DESC, bucket
    LIMIT 1
),
stretches AS (
    SELECT 'worst_stretch' AS view, 'all' AS lanes_of, first_bucket, last_bucket FROM worst
    UNION ALL
    SELECT DISTINCT view, view, (SELECT min(bucket) FROM costs), (SELECT max(bucket) FROM costs) FROM worker_lanes
),
folds AS (
    SELECT stretches.view, lanes_of, first_bucket, last_bucket,
        ((max(lane) + 1) * (last_bucket - first_bucket + 1) - 1) // $most_marks + 1 AS fold
    FROM stretches JOIN worker_lanes ON lanes_of = worker_lanes.view
    GROUP BY stretches.view, lanes_of, first_bucket, last_bucket
),
parts AS (
    SELECT folds.view, lane, role, worker_count, waiting_ratio, from_ns, to_ns, first_bucket, last_bucket, fold,
        min(worker_id) AS first_worker_id,
        (bucket - first_bucket) // fold AS part, state, reason, sum(state_ns)::BIGINT AS state_ns
    FROM worker_states
    JOIN worker_lanes USING (worker_id)
    JOIN folds ON lanes_of = worker_lanes.view AND bucket BETWEEN first_bucket AND last_bucket
    GROUP BY ALL
),
shares AS (
    SELECT *, sum(state_ns) OVER (PARTITION BY view, lane, part)::BIGINT AS part_worker_ns,
        state_ns / part_worker_ns AS share_ratio
    FROM parts
    QUALIFY share_ratio >= 0.05 OR row_number() OVER (PARTITION BY view, lane, part ORDER BY state_ns DESC) = 1
),
looks AS (
    SELECT view, lane, part, any_value(part_worker_ns) AS part_worker_ns,
        list((state, coalesce(reason, ''), round(10 * share_ratio)) ORDER BY state, reason) AS look
    FROM shares
    GROUP BY view, lane, part
),
compared AS (
    SELECT *, lag(look) OVER along IS DISTINCT FROM look OR lag(part) OVER along < part - 1 AS is_new
    FROM looks
    WINDOW along AS (PARTITION BY view, lane ORDER BY part)
),
numbered AS (
    SELECT view, lane, part, part_worker_ns,
        count(*) FILTER (is_new) OVER (PARTITION BY view, lane ORDER BY part) AS run
    FROM compared
),
runs AS (
    SELECT view, lane, run, min(part) AS first_part, max(part) AS last_part, sum(part_worker_ns) AS run_ns
    FROM numbered
    GROUP BY view, lane, run
)
SELECT
    view, lane, role, if(worker_count = 1, min(first_worker_id), NULL) AS worker_id, worker_count, waiting_ratio,
    greatest(from_ns, $origin_ns + (first_bucket + first_part * fold) * $bucket_ns) AS start_ns,
    least(to_ns, $origin_ns + least(last_bucket + 1, first_bucket + (last_part + 1) * fold) * $bucket_ns) AS end_ns,
    state, reason, sum(state_ns) / run_ns::DOUBLE AS share_ratio, fold * $bucket_ns AS part_ns
FROM shares
JOIN numbered USING (view, lane, part)
JOIN runs USING (view, lane, run)
GROUP BY view, lane, role, worker_count, waiting_ratio, from_ns, to_ns, first_bucket, last_bucket, first_part,
    last_part, fold, run, run_ns, state, reason
ORDER BY view, lane, start_ns, state, reason
