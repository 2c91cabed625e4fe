-- How long do weight updates take, and each of their parts?
--
-- in   weight_updates
-- out  phase          VARCHAR  publish, apply, or a part of them: drain, gather, convert, transfer, install, resume
-- out  versions       BIGINT   versions with this phase
-- out  median_s       DOUBLE   time of a version on its slowest worker, median over versions, seconds
-- out  first_half_s   DOUBLE   median over the first half of these versions, seconds; NULL for a single version
-- out  second_half_s  DOUBLE   median over the second half, without the middle one, seconds; NULL for a single version
-- out  longest_s      DOUBLE   its maximum, seconds
-- out  bytes          BIGINT   bytes moved per version, median; NULL if not recorded
-- grain: one row per recorded phase
-- partition: driver
WITH of_workers AS (
    SELECT phase, version, worker_id, sum(end_ns - start_ns) / 1e9 AS phase_s, max(bytes) AS bytes
    FROM weight_updates
    GROUP BY phase, version, worker_id
),
slowest AS (
    SELECT phase, version, max(phase_s) AS phase_s, max(bytes) AS bytes
    FROM of_workers
    GROUP BY phase, version
),
placed AS (
    SELECT *,
        2 * row_number() OVER (PARTITION BY phase ORDER BY version) AS twice_place,
        count(*) OVER (PARTITION BY phase) AS versions
    FROM slowest
)
SELECT
    phase,
    count(*) AS versions,
    median(phase_s) AS median_s,
    median(phase_s) FILTER (twice_place <= versions) AS first_half_s,
    median(phase_s) FILTER (twice_place > versions + 1) AS second_half_s,
    max(phase_s) AS longest_s,
    median(bytes)::BIGINT AS bytes
FROM placed
GROUP BY phase
ORDER BY phase
