-- What were reward, loss, entropy and gradient norm of each optimizer step?
--
-- in   train_steps, training_steps
-- out  step         BIGINT  optimizer step
-- out  start_ns     BIGINT  earliest start of compute, UTC epoch
-- out  end_ns       BIGINT  latest end of compute, UTC epoch
-- out  samples      BIGINT  samples, over all workers; NULL if not known
-- out  reward_mean  DOUBLE  mean reward, that of training_steps; NULL if not recorded
-- out  loss         DOUBLE  loss, weighted by tokens if they are known; NULL if not recorded
-- out  entropy      DOUBLE  mean token entropy, weighted by tokens if they are known, nats; NULL if not recorded
-- out  grad_norm    DOUBLE  largest gradient norm that a worker reported; NULL if not recorded
-- out  clip_ratio   DOUBLE  share of clipped tokens, weighted by tokens if they are known, 0..1; NULL if not recorded
-- grain: one row per step
-- partition: driver
--
-- Ranks that shard the model all report the gradient norm of the whole model, so a sum over ranks would be wrong.
WITH reported AS (
    SELECT
        step,
        coalesce(
            sum(loss * tokens) / nullif(sum(tokens) FILTER (loss IS NOT NULL), 0),
            avg(loss) FILTER (tokens IS NULL)
        ) AS loss,
        coalesce(
            sum(entropy * tokens) / nullif(sum(tokens) FILTER (entropy IS NOT NULL), 0),
            avg(entropy) FILTER (tokens IS NULL)
        ) AS entropy,
        max(grad_norm) AS grad_norm,
        coalesce(
            sum(clip_ratio * tokens) / nullif(sum(tokens) FILTER (clip_ratio IS NOT NULL), 0),
            avg(clip_ratio) FILTER (tokens IS NULL)
        ) AS clip_ratio
    FROM train_steps
    GROUP BY step
)
SELECT step, start_ns, end_ns, samples, reward_mean, loss, entropy, grad_norm, clip_ratio
FROM training_steps
JOIN reported USING (step)
ORDER BY step
