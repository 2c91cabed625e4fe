-- When and where was each part of each sample generated, by which versions, and what became of the sample?
--
-- in   samples, delivered_samples
-- out  worker_id      VARCHAR  engine
-- out  sample_id      VARCHAR  sample
-- out  segment        INTEGER  index of the part, from 0
-- out  group_id       VARCHAR  its prompt's group; NULL if not recorded
-- out  start_ns       BIGINT   first scheduled, or submitted if that is all that is known, UTC epoch
-- out  end_ns         BIGINT   last token, UTC epoch
-- out  prompt_tokens  INTEGER  context at its start, tokens
-- out  output_tokens  INTEGER  tokens generated
-- out  version_runs   VARCHAR  tokens by version in order, as 3:0-120, 4:120-300; the source of the versions is below
-- out  version_source VARCHAR  engine, segment, time_join or admission
-- out  finish_reason  VARCHAR  why it ended; NULL if not recorded
-- out  preemptions    INTEGER  times it was preempted; NULL if not recorded
-- out  outcome        VARCHAR  what became of the sample; NULL if it was not delivered
-- out  step           BIGINT   the step that trained on it first; NULL if none did
-- grain: one row per segment with a start
-- partition: sample
-- merge: concatenate
WITH fates AS (
    SELECT sample_id, min(step) AS step,
        arg_min(outcome, (coalesce(step, 9223372036854775807), taken_ns, outcome)) AS outcome
    FROM delivered_samples
    GROUP BY sample_id
)
SELECT
    worker_id, sample_id, segment, group_id,
    coalesce(started_ns, submitted_ns) AS start_ns,
    greatest(coalesce(started_ns, submitted_ns), finished_ns) AS end_ns,
    prompt_tokens, output_tokens,
    list_aggregate(list_transform(versions, lambda run: printf('%d:%d-%d', run.version, run."start", run."end")),
        'string_agg', ', ') AS version_runs,
    version_source, finish_reason, preemptions, outcome, step
FROM samples
LEFT JOIN fates USING (sample_id)
WHERE coalesce(started_ns, submitted_ns) IS NOT NULL
ORDER BY start_ns, worker_id, sample_id, segment
