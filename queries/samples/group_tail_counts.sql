-- By how much does the longest sample of a group exceed the mean, and how long do the others wait for the last?
--
-- in   group_tails
-- arg  bins              BIGINT  maximum number of bins, at least 1
-- out  tail_from         DOUBLE  longest over mean length, lower end of the bin
-- out  tail_to           DOUBLE  upper end of the bin, exclusive
-- out  groups            BIGINT  groups of at least two samples
-- out  last_wait_mean_s  DOUBLE  mean time from the finish of a group's median sample to its last, seconds
-- out  last_wait_max_s   DOUBLE  its maximum, seconds
-- out  censored_groups   BIGINT  groups with a sample whose length is only known as a lower bound
-- grain: one row per non-empty bin
-- partition: driver
--
-- Bins are 0.25 wide, or a multiple of it if there would be too many.
WITH tailed AS (
    SELECT tail_ratio, last_wait_s, censored_samples FROM group_tails WHERE samples > 1 AND tail_ratio IS NOT NULL
),
width AS (
    SELECT 0.25::DOUBLE * greatest(1, floor((max(tail_ratio) - 1) / (0.25::DOUBLE * $bins)) + 1) AS bin FROM tailed
)
SELECT
    1 + floor((tail_ratio - 1) / bin) * bin AS tail_from,
    1 + (floor((tail_ratio - 1) / bin) + 1) * bin AS tail_to,
    count(*) AS groups,
    avg((last_wait_s * 1e9)::BIGINT) / 1e9 AS last_wait_mean_s, -- a sum of integers does not depend on the order
    max(last_wait_s) AS last_wait_max_s,
    count(*) FILTER (censored_samples > 0) AS censored_groups
FROM tailed
CROSS JOIN width
GROUP BY tail_from, tail_to
ORDER BY tail_from
