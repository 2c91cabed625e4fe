-- How do the rewards of a step's samples go with their staleness, among responses of similar length?
--
-- in   delivered_samples
-- out  step             BIGINT   optimizer step
-- out  length_band      BIGINT   0 for truncated responses; 1 to 4 for the others, by quarters of their lengths
-- out  samples          BIGINT   samples with a reward, counted once per use
-- out  reward_sum       DOUBLE   their rewards
-- out  staleness_sum    BIGINT   staleness of their oldest tokens, versions
-- out  staleness_sum2   BIGINT   its squares
-- out  tokens_sum       BIGINT   response tokens
-- out  tokens_sum2      DOUBLE   their squares
-- out  staleness_tokens BIGINT   staleness times tokens
-- out  staleness_reward DOUBLE   staleness times reward
-- out  tokens_reward    DOUBLE   tokens times reward
-- grain: one row per step and length band with a sample
-- partition: driver
--
-- Sorting all samples by length and id would take most of the time, so ids order only those of a length that two
-- quarters share. Rewards are added in a fixed order, so that the sums have the same bits in every analysis.
WITH rewarded AS (
    SELECT
        step,
        sample_id,
        reward,
        output_tokens AS tokens,
        consumer_version - oldest_version AS staleness,
        finish_reason IS NOT DISTINCT FROM 'length' AS is_truncated
    FROM delivered_samples
    WHERE outcome = 'trained' AND step IS NOT NULL AND isfinite(reward) AND consumer_version >= oldest_version
),
lengths AS (
    SELECT tokens, count(*) AS samples, sum(count(*)) OVER (ORDER BY tokens) - samples AS shorter,
        sum(count(*)) OVER () AS in_all,
        quarter_of(shorter + 1, in_all) <> quarter_of(shorter + samples, in_all) AS is_divided
    FROM rewarded
    WHERE NOT is_truncated
    GROUP BY tokens
),
placed AS (
    SELECT rewarded.*, shorter + 1 AS place, in_all
    FROM rewarded JOIN lengths USING (tokens)
    WHERE NOT is_truncated AND NOT is_divided
    UNION ALL
    SELECT rewarded.*, shorter + row_number() OVER (PARTITION BY tokens ORDER BY sample_id, step), in_all
    FROM rewarded JOIN lengths USING (tokens)
    WHERE NOT is_truncated AND is_divided
    UNION ALL
    SELECT *, NULL, NULL FROM rewarded WHERE is_truncated
),
banded AS (
    SELECT *, coalesce(quarter_of(place, in_all), 0) AS length_band FROM placed
)
SELECT
    step,
    length_band::BIGINT AS length_band,
    count(*) AS samples,
    sum(reward ORDER BY reward) AS reward_sum,
    sum(staleness)::BIGINT AS staleness_sum,
    sum(staleness * staleness)::BIGINT AS staleness_sum2,
    sum(tokens)::BIGINT AS tokens_sum,
    sum(tokens::HUGEINT * tokens)::DOUBLE AS tokens_sum2,
    sum(staleness * tokens)::BIGINT AS staleness_tokens,
    sum(staleness * reward ORDER BY staleness * reward) AS staleness_reward,
    sum(tokens * reward ORDER BY tokens * reward) AS tokens_reward
FROM banded
GROUP BY step, length_band
ORDER BY step, length_band
