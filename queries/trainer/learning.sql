-- How did reward, loss and entropy move from step to step?
--
-- in   train_steps
-- out  step          BIGINT  optimizer step
-- out  end_ns        BIGINT  latest end of compute, UTC epoch
-- out  samples       BIGINT  samples, over all workers
-- out  reward_mean   DOUBLE  mean reward, weighted by samples; NULL if not recorded
-- out  loss_mean     DOUBLE  mean loss, weighted by samples; NULL if not recorded
-- out  entropy_mean  DOUBLE  mean token entropy in nat, weighted by samples; NULL if not recorded
-- grain: one row per step
-- partition: driver
SELECT
    step,
    max(end_ns) AS end_ns,
    sum(samples)::BIGINT AS samples,
    sum(reward_mean * samples) / nullif(sum(samples) FILTER (reward_mean IS NOT NULL), 0) AS reward_mean,
    sum(loss * samples) / nullif(sum(samples) FILTER (loss IS NOT NULL), 0) AS loss_mean,
    sum(entropy * samples) / nullif(sum(samples) FILTER (entropy IS NOT NULL), 0) AS entropy_mean
FROM train_steps
GROUP BY step
ORDER BY step
