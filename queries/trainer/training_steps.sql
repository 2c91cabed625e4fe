-- When did each optimizer step run, and on how many samples and tokens?
--
-- in   train_steps, delivered_samples, workers
-- out  step             BIGINT  optimizer step
-- out  start_ns         BIGINT  earliest start of compute, UTC epoch
-- out  end_ns           BIGINT  latest end of compute, UTC epoch
-- out  step_s           DOUBLE  from the end of the previous step to this end, seconds; NULL for the first of a start
-- out  compute_s        DOUBLE  mean compute per worker, seconds
-- out  version_in       BIGINT  last version published at its start
-- out  version_out      BIGINT  version published from it, or version_in
-- out  samples          BIGINT  samples, over all workers; NULL if not known
-- out  tokens           BIGINT  prompt and response tokens, over all workers; NULL if not known
-- out  response_tokens  BIGINT  response tokens of the samples delivered to it
-- out  reward_mean      DOUBLE  mean reward, weighted by samples if they are known; NULL if not recorded
-- grain: one row per step
-- partition: driver
--
-- The time in which a run was down is not part of a step: the trainers of the next step are others, and started after the end of
-- the previous one. In a part of a run that is followed, trainers seem to start with it.
-- The reward that the trainer reported for the step takes precedence over the mean of its deliveries' rewards. These are
-- added in a fixed order, so that the sum has the same bits in every analysis.
-- If trainers do not count the samples and tokens of a step, they are those of the samples delivered to it.
WITH delivered AS (
    SELECT
        step,
        sum(output_tokens)::BIGINT AS response_tokens,
        bool_and(is_recorded) AS knows_all,
        count(*) AS samples,
        sum(prompt_tokens + output_tokens)::BIGINT AS tokens,
        avg(reward ORDER BY reward) FILTER (isfinite(reward)) AS reward_mean
    FROM delivered_samples
    WHERE outcome = 'trained'
    GROUP BY step
),
steps AS (
    SELECT
        step,
        min(start_ns) AS start_ns,
        max(end_ns) AS end_ns,
        min(started_ns) AS started_ns,
        list(DISTINCT worker_id) AS trainers,
        sum(end_ns - start_ns) / count(DISTINCT worker_id) / 1e9 AS compute_s,
        max(version_in) AS version_in,
        max(version_out) AS version_out,
        sum(samples)::BIGINT AS samples,
        sum(tokens)::BIGINT AS tokens,
        coalesce(
            sum(reward_mean * samples) / nullif(sum(samples) FILTER (reward_mean IS NOT NULL), 0),
            avg(reward_mean) FILTER (samples IS NULL)
        ) AS reward_mean
    FROM train_steps
    LEFT JOIN workers USING (worker_id)
    GROUP BY step
)
SELECT
    steps.step, start_ns, end_ns,
    CASE WHEN started_ns <= lag(end_ns) OVER by_step OR list_has_any(trainers, lag(trainers) OVER by_step)
        THEN (end_ns - lag(end_ns) OVER by_step) / 1e9
    END AS step_s,
    compute_s, version_in, version_out,
    coalesce(steps.samples, if(knows_all, delivered.samples, NULL)) AS samples,
    coalesce(steps.tokens, if(knows_all, delivered.tokens, NULL)) AS tokens,
    coalesce(response_tokens, 0) AS response_tokens,
    coalesce(steps.reward_mean, delivered.reward_mean) AS reward_mean
FROM steps
LEFT JOIN delivered USING (step)
WINDOW by_step AS (ORDER BY steps.step)
ORDER BY steps.step
