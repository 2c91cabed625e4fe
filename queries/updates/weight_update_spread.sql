-- How long after publication do the first and the last engine run a version, and how long is generation paused?
--
-- in   weight_update_latency
-- arg  most_versions  BIGINT  maximum number of versions with a row of their own, at least 1
-- out  first_version  BIGINT  lowest version of the row
-- out  last_version   BIGINT  highest version of the row
-- out  start_ns       BIGINT  start of the first version's publication, UTC epoch
-- out  engines        BIGINT  engines that applied a version, maximum over the row's versions
-- out  least_engines  BIGINT  minimum over the row's versions
-- out  to_first_s     DOUBLE  shortest time from the start of a publication to its first engine, seconds
-- out  to_last_s      DOUBLE  longest time from the start of a publication to its last engine, seconds
-- out  paused_mean_s  DOUBLE  time that generation was paused per version, mean over engines; NULL if not recorded
-- out  paused_max_s   DOUBLE  its maximum, seconds
-- grain: one row per range of published versions, or per version if there are few
-- partition: driver
WITH versions_of AS (
    SELECT version, min(publish_start_ns) AS start_ns, count(*) AS engines,
        min(publish_to_applied_s) AS to_first_s,
        max(publish_to_applied_s) AS to_last_s,
        sum(if(paused, apply_s, 0)) FILTER (paused IS NOT NULL) AS paused_s,
        count(paused) AS told,
        max(if(paused, apply_s, 0)) FILTER (paused IS NOT NULL) AS paused_max_s
    FROM weight_update_latency
    WHERE publish_start_ns IS NOT NULL
    GROUP BY version
),
placed AS (
    SELECT version, start_ns, engines, to_first_s, to_last_s, paused_s, told, paused_max_s,
        (row_number() OVER (ORDER BY version) - 1)
            // greatest(1, (count(*) OVER () + $most_versions - 1) // $most_versions) AS place
    FROM versions_of
)
SELECT
    min(version) AS first_version,
    max(version) AS last_version,
    min(start_ns) AS start_ns,
    max(engines) AS engines,
    min(engines) AS least_engines,
    min(to_first_s) AS to_first_s,
    max(to_last_s) AS to_last_s,
    sum(paused_s) / nullif(sum(told), 0)::DOUBLE AS paused_mean_s,
    max(paused_max_s) AS paused_max_s
FROM placed
GROUP BY place
ORDER BY first_version
