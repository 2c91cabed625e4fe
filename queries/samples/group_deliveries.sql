-- Were the samples of a group queued one by one or all together, in the interval, and how long after the last token?
--
-- in   sample_uses, sample_totals
-- arg  from_ns         BIGINT  start of the interval, UTC epoch
-- arg  to_ns           BIGINT  its end, exclusive
-- out  samples         BIGINT  samples queued in the interval that were finished before the last one of their group
-- out  queued_earlier  BIGINT  of those, samples that entered the queue by themselves
-- out  delivery_s      DOUBLE  seconds from the last token of a group's last sample until it was queued, mean over the
--                              groups; NULL without groups
-- grain: one row
-- partition: driver
--
-- A group that waits for its last sample is queued at once, however far apart its samples were finished. So a sample
-- counts as queued by itself if it entered the queue ahead of the group's last one by more than half of the time by
-- which it was finished ahead of that one. What follows the last token, such as a reward, then makes no difference.
WITH members AS (
    SELECT
        queued_ns,
        queued_ns - finished_ns AS delivery_ns,
        max(finished_ns) OVER (PARTITION BY group_id) - finished_ns AS finished_ahead_ns,
        max(queued_ns) OVER (PARTITION BY group_id) - queued_ns AS queued_ahead_ns
    FROM sample_uses
    JOIN sample_totals USING (sample_id)
    WHERE group_id IS NOT NULL AND queued_ns IS NOT NULL
)
SELECT
    count(*) FILTER (finished_ahead_ns > 0) AS samples,
    count(*) FILTER (finished_ahead_ns > 0 AND 2 * queued_ahead_ns > finished_ahead_ns) AS queued_earlier,
    sum(greatest(delivery_ns, 0)) FILTER (finished_ahead_ns = 0)::DOUBLE
        / nullif(count(*) FILTER (finished_ahead_ns = 0), 0)
        / 1e9 AS delivery_s
FROM members
WHERE queued_ns >= $from_ns AND queued_ns < $to_ns
