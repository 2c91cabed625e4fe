-- How long did each optimizer step take the trainers, by phase?
--
-- in   train_steps, activities, weight_updates, workers
-- out  step           BIGINT  optimizer step
-- out  start_ns       BIGINT  earliest start of compute, UTC epoch
-- out  end_ns         BIGINT  latest end of compute, UTC epoch
-- out  trainer_gpus   BIGINT  GPUs of the workers that took part
-- out  train_gpu_s    DOUBLE  compute without the spans recorded inside it, GPU-seconds
-- out  logprobs_gpu_s DOUBLE  log-probabilities since the last step, GPU-seconds
-- out  wait_gpu_s     DOUBLE  all waits since the last step, GPU-seconds
-- out  held_gpu_s     DOUBLE  of these, waits for other work than sampling, such as another trainer's, GPU-seconds
-- out  other_gpu_s    DOUBLE  checkpoints, evaluations, rewards and other activities since the last step, GPU-seconds
-- out  publish_gpu_s  DOUBLE  publications and transfers since the last step, GPU-seconds
-- out  published      BIGINT  versions published from it
-- grain: one row per step
-- partition: driver
--
-- A span belongs to the worker's first step that ends at or after it. Of a span and a compute or wait that overlap, the
-- time is that of whichever began last, as in the ledger. So a span in the background, such as a publication, has only
-- the time since the last whole step in it, without waits; a step that begins before the end of the one before has the
-- time since that end. Time under two spans of one phase, such as a transfer within its publication, counts once.
-- Trainers wait for sampling as long as the worker that waits longest for samples, for the staleness cap or without a
-- reason: the others may wait for it meanwhile. A worker may report a step in several rows, one for each micro-batch.
-- If no row names the version published after its step, that is the one from which the next step starts.
WITH steps AS (
    SELECT worker_id, step, start_ns, end_ns, version_in, version_out, gpu_count,
        row_number() OVER (PARTITION BY worker_id, step ORDER BY start_ns) = 1 AS is_first,
        lag(start_ns) OVER before AS earlier_start_ns,
        lag(end_ns) OVER before AS earlier_end_ns
    FROM train_steps JOIN workers USING (worker_id)
    WINDOW before AS (PARTITION BY worker_id ORDER BY end_ns, start_ns)
),
spans AS (
    SELECT worker_id, start_ns, end_ns,
        CASE activity WHEN 'weight_update' THEN 'publish' WHEN 'logprobs' THEN activity WHEN 'wait' THEN activity
            ELSE 'other' END AS kind,
        kind = 'wait' AND coalesce(reason, 'samples') IN ('samples', 'staleness_cap') AS is_for_samples
    FROM activities WHERE activity NOT IN ('train', 'startup')
    UNION ALL
    SELECT worker_id, start_ns, end_ns, 'publish', false FROM weight_updates WHERE phase IN ('publish', 'transfer')
),
placed AS (
    SELECT spans.worker_id, step, gpu_count, kind, is_for_samples,
        if(spans.start_ns <= earlier_start_ns, earlier_end_ns, spans.start_ns) AS start_ns,
        spans.start_ns >= steps.start_ns AS is_inside,
        if(is_inside, spans.end_ns, least(spans.end_ns, steps.start_ns)) AS end_ns
    FROM spans
    ASOF JOIN steps ON spans.worker_id = steps.worker_id AND spans.end_ns <= steps.end_ns
),
parts AS (
    SELECT worker_id, step, gpu_count, kind, is_for_samples, is_inside,
        if(kind = 'wait', 0, sum(end_ns - start_ns) FILTER (kind = 'wait') OVER begun
            - greatest(0, max(end_ns) FILTER (kind = 'wait') OVER begun - end_ns)) AS waited_ns,
        greatest(0, end_ns - greatest(start_ns, max(end_ns) OVER earlier) - coalesce(waited_ns, 0)) AS part_ns,
        greatest(0, end_ns - greatest(start_ns, max(end_ns) FILTER (is_inside) OVER earlier_of_any)) AS any_ns
    FROM placed
    WINDOW
        begun AS (PARTITION BY worker_id ORDER BY start_ns RANGE BETWEEN 1 FOLLOWING AND end_ns - start_ns FOLLOWING),
        earlier AS (
            PARTITION BY worker_id, kind ORDER BY start_ns, end_ns DESC ROWS UNBOUNDED PRECEDING EXCLUDE CURRENT ROW
        ),
        earlier_of_any AS (
            PARTITION BY worker_id ORDER BY start_ns, end_ns DESC ROWS UNBOUNDED PRECEDING EXCLUDE CURRENT ROW
        )
),
costs AS (
    SELECT step,
        sum(part_ns * gpu_count) FILTER (kind = 'logprobs') / 1e9 AS logprobs_gpu_s,
        sum(part_ns * gpu_count) FILTER (kind = 'wait') / 1e9 AS wait_gpu_s,
        sum(part_ns * gpu_count) FILTER (kind = 'other') / 1e9 AS other_gpu_s,
        sum(part_ns * gpu_count) FILTER (kind = 'publish') / 1e9 AS publish_gpu_s,
        sum(any_ns * gpu_count) FILTER (is_inside) AS inside_gpu_ns
    FROM parts
    GROUP BY step
),
sampling AS (
    SELECT step, sum(part_ns) / 1e9 AS waited_s FROM parts WHERE is_for_samples GROUP BY step, worker_id
),
totals AS (
    SELECT step, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
        (sum(gpu_count) FILTER (is_first))::BIGINT AS trainer_gpus,
        sum((end_ns - greatest(start_ns, earlier_end_ns)) * gpu_count) AS compute_gpu_ns,
        if(bool_or(max(version_out) > max(version_in)) OVER (), max(version_out) - max(version_in),
            greatest(0, lead(max(version_in)) OVER (ORDER BY step) - max(version_in))) AS published
    FROM steps
    GROUP BY step
)
SELECT
    totals.step, start_ns, end_ns, trainer_gpus,
    (compute_gpu_ns - coalesce(inside_gpu_ns, 0)) / 1e9 AS train_gpu_s,
    coalesce(logprobs_gpu_s, 0) AS logprobs_gpu_s,
    coalesce(wait_gpu_s, 0) AS wait_gpu_s,
    coalesce(greatest(0, wait_gpu_s - trainer_gpus * coalesce(longest_s, 0)), 0) AS held_gpu_s,
    coalesce(other_gpu_s, 0) AS other_gpu_s,
    coalesce(publish_gpu_s, 0) AS publish_gpu_s,
    published
FROM totals
LEFT JOIN costs USING (step)
LEFT JOIN (SELECT step, max(waited_s) AS longest_s FROM sampling GROUP BY step) USING (step)
ORDER BY totals.step
