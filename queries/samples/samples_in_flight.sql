-- How many samples were in flight on the engines in the interval, and how many elsewhere?
--
-- in   samples, sample_totals
-- arg  from_ns             BIGINT  start of the interval, UTC epoch
-- arg  to_ns               BIGINT  its end, exclusive
-- out  in_flight_mean      DOUBLE  samples between first schedule and last token, mean over the interval
-- out  environment_mean    DOUBLE  samples in flight that wait outside the engine; 0 if no wait was recorded
-- out  between_turns_mean  DOUBLE  those of them that are between two segments; each segment is a request
-- out  queued_mean         DOUBLE  segments submitted but not yet scheduled; NULL if never recorded
-- out  finished_samples    BIGINT  samples whose last token is in the interval
-- out  preemptions         BIGINT  preemptions of the segments that end in it; NULL if not recorded
-- grain: one row
-- partition: driver
--
-- A segment's wait outside the engine is spread evenly over the segment, because its position is not recorded. Between
-- two segments, a sample is outside as in `sample_totals`; one that was cut off keeps its place on the engine meanwhile.
WITH spans AS (
    SELECT
        finished_ns, preemptions, submitted_ns IS NOT NULL AS is_submitted,
        greatest(0, least(finished_ns, $to_ns) - greatest(started_ns, $from_ns)) AS inside_ns,
        greatest(0, least(started_ns, $to_ns) - greatest(submitted_ns, $from_ns)) AS queued_ns,
        coalesce(env_wait_ns, 0) / nullif(finished_ns - started_ns, 0) AS environment_ratio
    FROM samples
    WHERE started_ns IS NOT NULL AND finished_ns >= $from_ns AND coalesce(submitted_ns, started_ns) < $to_ns
),
turns AS (
    SELECT
        finished_ns, coalesce(finish_reason, 'stop') IN ('abort', 'error', 'length') AS is_cut,
        if(is_cut, lead(coalesce(started_ns, submitted_ns)) OVER of_sample,
            lead(coalesce(submitted_ns, started_ns)) OVER of_sample) AS next_ns
    FROM samples
    SEMI JOIN (SELECT sample_id FROM sample_totals WHERE segments > 1) AS resumed USING (sample_id)
    WINDOW of_sample AS (PARTITION BY sample_id ORDER BY segment)
),
between_turns AS (
    SELECT coalesce(sum(gap_ns), 0) AS inside_ns, coalesce(sum(gap_ns) FILTER (NOT is_cut), 0) AS outside_ns
    FROM (
        SELECT is_cut, greatest(0, least(next_ns, $to_ns) - greatest(finished_ns, $from_ns)) AS gap_ns
        FROM turns
        WHERE next_ns IS NOT NULL
    )
),
ended AS (
    SELECT count(*) AS finished_samples
    FROM sample_totals
    WHERE started_ns IS NOT NULL AND finished_ns >= $from_ns AND finished_ns < $to_ns
),
in_segments AS (
    SELECT
        coalesce(sum(inside_ns), 0) AS inside_ns,
        coalesce(sum(inside_ns * least(1, environment_ratio)), 0) AS outside_ns,
        sum(if(is_submitted, queued_ns, NULL)) AS queued_ns,
        sum(preemptions) FILTER (finished_ns < $to_ns)::BIGINT AS preemptions
    FROM spans
)
SELECT
    (in_segments.inside_ns + between_turns.inside_ns) / ($to_ns - $from_ns)::DOUBLE AS in_flight_mean,
    (in_segments.outside_ns + between_turns.outside_ns) / ($to_ns - $from_ns)::DOUBLE AS environment_mean,
    between_turns.outside_ns / ($to_ns - $from_ns)::DOUBLE AS between_turns_mean,
    queued_ns / ($to_ns - $from_ns)::DOUBLE AS queued_mean,
    finished_samples,
    preemptions
FROM in_segments, between_turns, ended
