-- What did the trainers report of each optimizer step: reward, loss, entropy, gradient norm?
--
-- in   train_steps
-- out  step         BIGINT  optimizer step
-- out  start_ns     BIGINT  earliest start of compute, UTC epoch
-- out  end_ns       BIGINT  latest end of compute, UTC epoch
-- out  reward_mean  DOUBLE  mean reward, weighted by samples; NULL if not recorded
-- out  loss         DOUBLE  loss, weighted by tokens; NULL if not recorded
-- out  entropy      DOUBLE  mean token entropy, weighted by tokens, nats; NULL if not recorded
-- out  grad_norm    DOUBLE  largest gradient norm that a worker reported; NULL if not recorded
-- out  clip_ratio   DOUBLE  share of clipped tokens, weighted by tokens, 0..1; NULL if not recorded
-- grain: one row per step
-- partition: driver
--
-- Ranks that shard the model report the same gradient norm, which a mean or a sum over them would not keep.
SELECT
    step,
    min(start_ns) AS start_ns,
    max(end_ns) AS end_ns,
    sum(reward_mean * samples) / nullif(sum(samples) FILTER (reward_mean IS NOT NULL), 0) AS reward_mean,
    sum(loss * tokens) / nullif(sum(tokens) FILTER (loss IS NOT NULL), 0) AS loss,
    sum(entropy * tokens) / nullif(sum(tokens) FILTER (entropy IS NOT NULL), 0) AS entropy,
    max(grad_norm) AS grad_norm,
    sum(clip_ratio * tokens) / nullif(sum(tokens) FILTER (clip_ratio IS NOT NULL), 0) AS clip_ratio
FROM train_steps
GROUP BY step
ORDER BY step
