-- How many samples were in flight on the engines in the interval, and how many elsewhere?
--
-- in   samples
-- arg  from_ns             BIGINT  start of the interval, UTC epoch
-- arg  to_ns               BIGINT  its end, exclusive
-- out  in_flight_mean      DOUBLE  segments between first schedule and last token, mean over the interval
-- out  environment_mean    DOUBLE  segments in flight that wait outside the engine; 0 if no wait was recorded
-- out  queued_mean         DOUBLE  segments submitted but not yet scheduled; NULL if never recorded
-- out  finished_segments   BIGINT  segments whose last token is in the interval
-- out  preemptions         BIGINT  their preemptions; NULL if not recorded
-- grain: one row
-- partition: driver
--
-- A segment's wait outside the engine is spread evenly over the segment, because its position is not recorded.
WITH spans AS (
    SELECT
        finished_ns, preemptions, submitted_ns IS NOT NULL AS is_submitted,
        greatest(0, least(finished_ns, $to_ns) - greatest(started_ns, $from_ns)) AS inside_ns,
        greatest(0, least(started_ns, $to_ns) - greatest(submitted_ns, $from_ns)) AS queued_ns,
        coalesce(env_wait_ns, 0) / nullif(finished_ns - started_ns, 0) AS environment_ratio
    FROM samples
    WHERE started_ns IS NOT NULL AND finished_ns >= $from_ns AND coalesce(submitted_ns, started_ns) < $to_ns
)
SELECT
    coalesce(sum(inside_ns), 0) / ($to_ns - $from_ns)::DOUBLE AS in_flight_mean,
    coalesce(sum(inside_ns * least(1, environment_ratio)), 0) / ($to_ns - $from_ns)::DOUBLE AS environment_mean,
    sum(if(is_submitted, queued_ns, NULL)) / ($to_ns - $from_ns)::DOUBLE AS queued_mean,
    count(*) FILTER (finished_ns < $to_ns) AS finished_segments,
    sum(preemptions) FILTER (finished_ns < $to_ns)::BIGINT AS preemptions
FROM spans
