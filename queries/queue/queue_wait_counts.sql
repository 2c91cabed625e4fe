-- How are the queue waits of all samples distributed?
--
-- in   deliveries
-- arg  bins            BIGINT  maximum number of bins, at least 1
-- out  wait_from_s     DOUBLE  lower end of the bin, seconds
-- out  wait_to_s       DOUBLE  upper end of the bin, exclusive, seconds
-- out  trained         BIGINT  samples that were trained on
-- out  not_trained     BIGINT  samples that were dropped, filtered or abandoned
-- grain: one row per non-empty bin; deliveries without a recorded queue time are left out
-- partition: driver
WITH waits AS (
    SELECT outcome, taken_ns - queued_ns AS wait_ns FROM deliveries WHERE queued_ns IS NOT NULL
),
width AS (
    SELECT least(0, min(wait_ns)) AS least_ns,
        greatest(1, (max(wait_ns) - least(0, min(wait_ns)) + $bins) // $bins) AS bin_ns
    FROM waits
)
SELECT
    (least_ns + (wait_ns - least_ns) // bin_ns * bin_ns) / 1e9 AS wait_from_s,
    (least_ns + ((wait_ns - least_ns) // bin_ns + 1) * bin_ns) / 1e9 AS wait_to_s,
    count(*) FILTER (outcome = 'trained') AS trained,
    count(*) FILTER (outcome <> 'trained') AS not_trained
FROM waits
CROSS JOIN width
GROUP BY wait_from_s, wait_to_s
ORDER BY wait_from_s
