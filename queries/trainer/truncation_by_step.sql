-- What share of the samples of each optimizer step was cut at the length limit, and what reward did the others get?
--
-- in   delivered_samples, train_steps
-- out  step                  BIGINT  optimizer step
-- out  truncated_ratio       DOUBLE  share of its trained samples that finished or were cut, 0..1
-- out  finished_reward_mean  DOUBLE  mean reward of those that finished; NULL if there are none with a reward
-- grain: one row per step whose share is known
-- partition: driver
--
-- Recorded samples take precedence over the share that the trainer reports. Rewards are added in a fixed order, so that
-- the mean has the same bits in every analysis.
WITH recorded AS (
    SELECT
        step,
        avg((finish_reason = 'length')::INTEGER) AS truncated_ratio,
        avg(reward ORDER BY reward) FILTER (finish_reason = 'stop' AND isfinite(reward)) AS finished_reward_mean
    FROM delivered_samples
    WHERE outcome = 'trained' AND step IS NOT NULL AND finish_reason IN ('stop', 'length')
    GROUP BY step
),
reported AS (
    SELECT
        step,
        coalesce(
            sum(truncated_ratio * samples) / nullif(sum(samples), 0),
            avg(truncated_ratio ORDER BY truncated_ratio)
        ) AS truncated_ratio
    FROM train_steps
    WHERE isfinite(truncated_ratio)
    GROUP BY step
)
SELECT
    step,
    coalesce(recorded.truncated_ratio, reported.truncated_ratio) AS truncated_ratio,
    finished_reward_mean
FROM recorded
FULL JOIN reported USING (step)
ORDER BY step
