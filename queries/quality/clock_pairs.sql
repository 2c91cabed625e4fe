-- How close did effects on one host come to their causes on another?
--
-- in   workers, weight_updates, samples, deliveries, train_steps
-- arg  cells        BIGINT   cells that the median life of a worker is cut into
-- out  kind         VARCHAR  published_applied, published_sampled, published_trained, trained_published,
--                            finished_taken, taken_trained, resumed, finished_queued or queued_taken
-- out  cause_host   VARCHAR  host of the cause; of the taker's sample in queued_taken
-- out  effect_host  VARCHAR  host of the effect; of the taker in finished_queued
-- out  cell         BIGINT   when the cause was, in cells since the first worker of its host started
-- out  cause_ns     BIGINT   cause of the tightest pair, the earliest of equal ones, by the clock of its host
-- out  effect_ns    BIGINT   its effect, by the clock of the host that recorded it
-- out  pairs        BIGINT   pairs in the cell
-- grain: one row per kind, pair of different hosts and cell
-- partition: driver
-- No effect precedes its cause. Which host's clock queued_ns is from depends on the framework, so its pairs name the
-- hosts of the engine and of the taker. The oldest version may have been in use before it was published.
WITH hosts AS (
    SELECT worker_id, host, min(started_ns) OVER (PARTITION BY host) AS origin_ns,
        dense_rank() OVER (ORDER BY host)::INTEGER AS place
    FROM workers WHERE host IS NOT NULL
),
names AS (SELECT DISTINCT place, host FROM hosts),
lives AS (
    SELECT greatest(1, coalesce(median(coalesce(stopped_ns, last_flush_ns) - started_ns), 36e11) // $cells)::BIGINT
        AS cell_ns FROM workers
),
updates AS (
    SELECT phase, version, place, origin_ns, min(start_ns) AS start_ns, min(end_ns) AS end_ns
    FROM weight_updates JOIN hosts USING (worker_id) GROUP BY ALL
),
published AS (
    -- several hosts may each publish to their own engines: only the first has to precede its effects elsewhere
    SELECT version, place, origin_ns, start_ns, end_ns, version > min(version) OVER () AS is_new,
        start_ns = min(start_ns) OVER (PARTITION BY version) AS is_first
    FROM updates WHERE phase = 'publish'
),
sampled AS (
    SELECT list_max(list_transform(versions, lambda run: run.version)) AS version, place,
        min(finished_ns) AS finished_ns
    FROM samples JOIN hosts USING (worker_id) WHERE version_source = 'engine' GROUP BY ALL
),
steps AS (
    SELECT step, version_in, version_out, place, origin_ns, min(start_ns) AS start_ns, min(end_ns) AS end_ns
    FROM train_steps JOIN hosts USING (worker_id) GROUP BY ALL
),
takes AS MATERIALIZED (
    SELECT engines.place AS engine, takers.place AS taker, engines.origin_ns, takers.origin_ns AS taker_origin_ns, step,
        samples.finished_ns, deliveries.queued_ns, deliveries.taken_ns
    FROM deliveries JOIN samples USING (sample_id)
    JOIN hosts AS engines ON samples.worker_id = engines.worker_id
    JOIN hosts AS takers ON deliveries.worker_id = takers.worker_id
    -- a sample that was not trained on may end after it was taken
    WHERE deliveries.outcome = 'trained'
),
batches AS (
    SELECT step, taker AS place, taker_origin_ns AS origin_ns, min(taken_ns) AS taken_ns FROM takes GROUP BY ALL
),
pairs AS (
    SELECT 'published_applied' AS kind, published.place AS cause, updates.place AS effect,
        published.origin_ns, published.start_ns AS cause_ns, updates.end_ns AS effect_ns
    FROM published JOIN updates ON published.version = updates.version AND updates.phase = 'apply' AND is_first
    UNION ALL
    SELECT 'published_sampled', published.place, sampled.place, origin_ns, start_ns, finished_ns
    FROM published JOIN sampled USING (version) WHERE is_new AND is_first
    UNION ALL
    SELECT 'published_trained', published.place, steps.place, published.origin_ns, published.start_ns, steps.end_ns
    -- a rank that publishes nothing may start before the rank that publishes, but cannot end a step before it
    FROM published JOIN steps ON published.version = steps.version_in AND is_new AND is_first
    UNION ALL
    SELECT 'trained_published', steps.place, published.place, steps.origin_ns, steps.start_ns, published.end_ns
    FROM published JOIN steps ON published.version = steps.version_out AND steps.version_out <> steps.version_in
    UNION ALL
    SELECT 'taken_trained', batches.place, steps.place, batches.origin_ns, taken_ns, end_ns
    FROM batches JOIN steps USING (step)
    UNION ALL
    SELECT 'resumed', own.place, others.place, own.origin_ns, before.finished_ns,
        -- no segment lasts a day, so such a start is invalid
        if(resumed.finished_ns - resumed.started_ns BETWEEN 0 AND 86400e9, resumed.started_ns, resumed.finished_ns)
    FROM (FROM samples WHERE segment > 0) AS resumed
    JOIN samples AS before ON before.sample_id = resumed.sample_id AND before.segment = resumed.segment - 1
    JOIN hosts AS own ON before.worker_id = own.worker_id
    JOIN hosts AS others ON resumed.worker_id = others.worker_id
    UNION ALL
    SELECT 'finished_taken', engine, taker, origin_ns, finished_ns, taken_ns FROM takes
    UNION ALL
    SELECT 'finished_queued', engine, taker, origin_ns, finished_ns, queued_ns FROM takes WHERE queued_ns IS NOT NULL
    UNION ALL
    SELECT 'queued_taken', engine, taker, origin_ns, queued_ns, taken_ns FROM takes WHERE queued_ns IS NOT NULL
)
SELECT
    kind, any_value(causes.host) AS cause_host, any_value(effects.host) AS effect_host,
    greatest(0, least(16 * $cells, (cause_ns - origin_ns) // cell_ns)) AS cell,
    arg_min(cause_ns, (effect_ns - cause_ns, cause_ns)) AS cause_ns,
    arg_min(effect_ns, (effect_ns - cause_ns, cause_ns)) AS effect_ns, count(*) AS pairs
FROM pairs CROSS JOIN lives
JOIN names AS causes ON cause = causes.place
JOIN names AS effects ON effect = effects.place
WHERE cause <> effect
GROUP BY kind, cause, effect, cell
ORDER BY kind, cause_host, effect_host, cell
