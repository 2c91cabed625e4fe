-- How many of the samples of each optimizer step were cut at the length limit, and what reward did the others get?
--
-- in   delivered_samples
-- out  step                  BIGINT  optimizer step
-- out  samples               BIGINT  trained samples that finished or were cut; samples with another ending are left out
-- out  truncated_samples     BIGINT  those cut at the length limit
-- out  truncated_ratio       DOUBLE  their share, 0..1
-- out  finished_reward_mean  DOUBLE  mean reward of those that finished; NULL if there are none with a reward
-- grain: one row per step with such a sample
-- partition: driver
--
-- Rewards are added in a fixed order, so that the mean has the same bits in every analysis.
SELECT
    step,
    count(*) AS samples,
    count(*) FILTER (finish_reason = 'length') AS truncated_samples,
    truncated_samples / samples::DOUBLE AS truncated_ratio,
    avg(reward ORDER BY reward) FILTER (finish_reason = 'stop' AND isfinite(reward)) AS finished_reward_mean
FROM delivered_samples
WHERE outcome = 'trained' AND step IS NOT NULL AND finish_reason IN ('stop', 'length')
GROUP BY step
ORDER BY step
