-- What is known of the sample in each delivery?
--
-- in   deliveries, sample_totals, train_steps
-- out  sample_id         VARCHAR  sample
-- out  outcome           VARCHAR  trained, dropped_stale, filtered or abandoned
-- out  queued_ns         BIGINT   when it entered the queue, UTC epoch; NULL if not recorded
-- out  taken_ns          BIGINT   when it left the queue, UTC epoch
-- out  step              BIGINT   optimizer step; NULL if the delivery has none
-- out  consumer_version  BIGINT   last version published at the start of the step; NULL if not recorded
-- out  reward            DOUBLE   reward; NULL if not recorded
-- out  is_recorded       BOOLEAN  whether the sample itself was recorded; if not, the columns below are NULL
-- out  group_id          VARCHAR  the samples of one prompt; NULL if not recorded
-- out  worker_id         VARCHAR  engine of its last segment
-- out  prompt_tokens     INTEGER  prompt of its first segment
-- out  output_tokens     BIGINT   response tokens
-- out  started_ns        BIGINT   first scheduled, UTC epoch; NULL if not recorded
-- out  finished_ns       BIGINT   last token, UTC epoch
-- out  oldest_version    BIGINT   policy version of its oldest token; NULL without tokens
-- out  newest_version    BIGINT   policy version of its newest token
-- out  finish_reason     VARCHAR  of its last segment; NULL if not recorded
-- grain: one row per delivery, in no order
-- partition: sample
-- merge: concatenate
WITH step_versions AS (
    SELECT step, max(version_in) AS version_in FROM train_steps GROUP BY step
)
SELECT
    deliveries.sample_id,
    outcome,
    queued_ns,
    taken_ns,
    step,
    coalesce(consumer_version, version_in) AS consumer_version,
    reward,
    sample_totals.sample_id IS NOT NULL AS is_recorded,
    sample_totals.group_id,
    sample_totals.worker_id,
    sample_totals.prompt_tokens,
    sample_totals.output_tokens,
    sample_totals.started_ns,
    sample_totals.finished_ns,
    sample_totals.oldest_version,
    sample_totals.newest_version,
    sample_totals.finish_reason
FROM deliveries
LEFT JOIN step_versions USING (step)
LEFT JOIN sample_totals USING (sample_id)
