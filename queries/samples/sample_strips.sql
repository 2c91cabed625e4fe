-- What happened to the longest, the stalest and a median sample, token by token?
--
-- in   samples, sample_totals, delivered_samples, deliveries, training_steps
-- out  chosen_as          VARCHAR  longest, stalest, median; several if one sample is more than one of them
-- out  sample_id          VARCHAR  sample
-- out  worker_id          VARCHAR  engine that generated these tokens
-- out  token_from         BIGINT   first of these tokens, counted through the whole response from 0
-- out  token_to           BIGINT   one past the last of them
-- out  version            BIGINT   policy version that generated them
-- out  staleness          BIGINT   consumer version minus that version; NULL if not trained or unknown
-- out  output_tokens      BIGINT   response tokens of the sample
-- out  started_ns         BIGINT   first scheduled, UTC epoch; NULL if not recorded
-- out  finished_ns        BIGINT   last token, UTC epoch
-- out  queued_ns          BIGINT   entered the queue, UTC epoch; NULL if not recorded
-- out  taken_ns           BIGINT   left the queue, UTC epoch; NULL if not delivered
-- out  outcome            VARCHAR  trained, dropped_stale, filtered or abandoned; NULL if not delivered
-- out  step               BIGINT   optimizer step that trained on it; NULL if not trained
-- out  trained_ns         BIGINT   start of that step, UTC epoch; NULL if not recorded
-- out  consumer_version   BIGINT   last version published at the start of the step; NULL if not trained or unknown
-- grain: one row per run of tokens of a chosen sample
-- partition: driver
--
-- Chosen from the trained samples; if there are none, from the delivered ones; else from all. Among equally stale
-- samples, the longest one except the longest of all is chosen. The median sample has the median length and, among
-- those, the staleness closest to the median.
WITH known AS (
    SELECT sample_id, outcome, step, consumer_version, output_tokens, started_ns, finished_ns,
        consumer_version - oldest_version AS oldest
    FROM delivered_samples
    WHERE is_recorded AND output_tokens > 0
    UNION ALL
    SELECT sample_id, NULL, NULL, NULL, output_tokens, started_ns, finished_ns, NULL
    FROM sample_totals
    WHERE output_tokens > 0 AND NOT EXISTS (FROM delivered_samples WHERE is_recorded AND output_tokens > 0)
),
candidates AS (
    SELECT sample_id, outcome, step, consumer_version, output_tokens, started_ns, finished_ns, oldest
    FROM known
    WHERE outcome IS NOT DISTINCT FROM 'trained' OR NOT EXISTS (FROM known WHERE outcome = 'trained')
),
middle AS (
    SELECT quantile_disc(output_tokens, 0.5) AS output_tokens, quantile_disc(oldest, 0.5) AS oldest FROM candidates
),
longest AS (
    SELECT sample_id, outcome, step, consumer_version, output_tokens, started_ns, finished_ns, oldest FROM candidates
    ORDER BY output_tokens DESC, oldest DESC NULLS LAST, sample_id, step LIMIT 1
),
stalest AS (
    SELECT candidates.* FROM candidates CROSS JOIN longest
    WHERE candidates.oldest > 0
    ORDER BY candidates.oldest DESC, candidates.sample_id = longest.sample_id, candidates.output_tokens DESC,
        candidates.sample_id, candidates.step
    LIMIT 1
),
median AS (
    SELECT candidates.* FROM candidates JOIN middle USING (output_tokens)
    ORDER BY abs(candidates.oldest - middle.oldest), candidates.sample_id, candidates.step LIMIT 1
),
picked AS (
    SELECT 1 AS place, 'longest' AS pick, * FROM longest
    UNION ALL SELECT 2, 'stalest', * FROM stalest
    UNION ALL SELECT 3, 'median', * FROM median
),
chosen AS (
    SELECT min(place) AS place, string_agg(pick, ', ' ORDER BY place) AS chosen_as,
        sample_id, outcome, step, consumer_version, output_tokens, started_ns, finished_ns
    FROM picked
    GROUP BY ALL
),
handed_on AS (
    SELECT sample_id, outcome, step, min(queued_ns) AS queued_ns, min(taken_ns) AS taken_ns
    FROM deliveries
    WHERE sample_id IN (SELECT sample_id FROM chosen)
    GROUP BY sample_id, outcome, step
),
segments AS (
    SELECT sample_id, segment, worker_id, versions,
        coalesce(sum(output_tokens) OVER earlier, 0)::BIGINT AS before_tokens
    FROM samples
    WHERE sample_id IN (SELECT sample_id FROM chosen)
    WINDOW earlier AS (PARTITION BY sample_id ORDER BY segment ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
runs AS (
    SELECT sample_id, segment, worker_id, before_tokens, unnest(versions) AS run FROM segments
)
SELECT
    chosen_as, chosen.sample_id, worker_id,
    before_tokens + run.start AS token_from,
    before_tokens + run."end" AS token_to,
    run.version AS version,
    if(chosen.outcome = 'trained', consumer_version, NULL) - run.version AS staleness,
    output_tokens, started_ns, finished_ns, queued_ns, taken_ns, chosen.outcome, chosen.step,
    training_steps.start_ns AS trained_ns,
    if(chosen.outcome = 'trained', consumer_version, NULL) AS consumer_version
FROM chosen
JOIN runs USING (sample_id)
LEFT JOIN handed_on ON handed_on.sample_id = chosen.sample_id
    AND handed_on.outcome = chosen.outcome AND handed_on.step IS NOT DISTINCT FROM chosen.step
LEFT JOIN training_steps ON training_steps.step = chosen.step
ORDER BY place, token_from
