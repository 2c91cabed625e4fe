-- In how many groups does the longest sample stand out how far, and how long do the others wait for the last?
--
-- in   group_tails
-- arg  bins              BIGINT  most bins, at least 1
-- out  tail_from         DOUBLE  longest over mean length, least of the bin
-- out  tail_to           DOUBLE  end of the bin, not included
-- out  groups            BIGINT  groups of at least two samples
-- out  last_wait_mean_s  DOUBLE  from the end of a group's median sample to the end of its last, mean, seconds
-- out  last_wait_max_s   DOUBLE  its maximum, seconds
-- out  censored_groups   BIGINT  groups with a sample whose length is not known, only its least
-- grain: one row per bin with a group in it
--
-- Bins are a quarter wide, or as many quarters as it takes.
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
    avg(last_wait_s) AS last_wait_mean_s,
    max(last_wait_s) AS last_wait_max_s,
    count(*) FILTER (censored_samples > 0) AS censored_groups
FROM tailed
CROSS JOIN width
GROUP BY tail_from, tail_to
ORDER BY tail_from
