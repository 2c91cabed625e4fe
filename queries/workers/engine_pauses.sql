-- When did each engine run nothing, by its rows?
--
-- in   worker_extents, engine_steps
-- arg  first_origin_ns  BIGINT   start of the first cell of one grid, UTC epoch
-- arg  first_cell_ns    BIGINT   length of its cells
-- arg  second_origin_ns BIGINT   start of the first cell of another grid, UTC epoch; may be the same
-- arg  second_cell_ns   BIGINT   length of its cells
-- arg  idle_after_ns    BIGINT   a shorter time between two rows is left out unless it reaches an edge of either grid
-- arg  rows_disjoint    BOOLEAN  the result of engine_row_order; false is always correct, true is faster
-- out  worker_id        VARCHAR  worker with GPUs; one without engine rows has one pause
-- out  from_ns          BIGINT   end of a row, or start of the worker, UTC epoch
-- out  to_ns            BIGINT   start of the next row, or end of the worker, UTC epoch
-- out  is_at_end        BOOLEAN  whether it is the time before the first row or after the last
-- grain: one row per worker and time between its rows, before them and after them
-- partition: worker
-- merge: concatenate
--
-- A row that was polled or logged while the engine ran nothing is not work. Rows that do not overlap are stored in
-- order, so each row follows its neighbor and no sort is needed.
WITH extents AS (
    SELECT worker_id, start_ns, end_ns FROM worker_extents WHERE gpu_count > 0
),
worked AS NOT MATERIALIZED (
    SELECT worker_id, start_ns, end_ns
    FROM engine_steps
    WHERE start_ns < end_ns AND NOT (coalesce(source, 'measured') <> 'measured' AND running = 0 AND decode_tokens = 0)
),
neighbors AS (
    SELECT worker_id, start_ns, end_ns,
        lag(worker_id) OVER () IS DISTINCT FROM worker_id AS is_first,
        lead(worker_id) OVER () IS DISTINCT FROM worker_id AS is_last,
        lead(start_ns) OVER () AS next_ns
    FROM worked
    WHERE $rows_disjoint
),
kept AS MATERIALIZED (
    SELECT worker_id, start_ns, end_ns, is_first, is_last, next_ns
    FROM neighbors
    WHERE is_first OR is_last OR next_ns > end_ns
),
around AS (
    SELECT worker_id, end_ns AS from_ns, if(is_last, NULL, next_ns) AS to_ns FROM kept
    UNION ALL
    SELECT worker_id, NULL, start_ns FROM kept WHERE is_first
    UNION ALL
    SELECT worker_id, NULL, NULL FROM extents ANTI JOIN kept USING (worker_id) WHERE $rows_disjoint
),
clipped AS (
    SELECT worker_id, greatest(engine_steps.start_ns, extents.start_ns) AS began_ns,
        least(engine_steps.end_ns, extents.end_ns) AS ended_ns
    FROM worked AS engine_steps
    JOIN extents USING (worker_id)
    WHERE NOT $rows_disjoint
        AND greatest(engine_steps.start_ns, extents.start_ns) < least(engine_steps.end_ns, extents.end_ns)
),
ends AS (
    SELECT worker_id, min(began_ns) AS first_ns, max(ended_ns) AS last_ns FROM clipped GROUP BY worker_id
),
pauses AS (
    SELECT worker_id, greatest(from_ns, start_ns) AS from_ns, least(to_ns, end_ns) AS to_ns,
        from_ns IS NULL OR to_ns IS NULL OR from_ns <= start_ns OR to_ns >= end_ns AS is_at_end
    FROM around
    JOIN extents USING (worker_id)
    UNION ALL
    SELECT worker_id,
        max(ended_ns) OVER (
            PARTITION BY worker_id ORDER BY began_ns, ended_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ),
        began_ns, false
    FROM clipped
    UNION ALL
    SELECT worker_id, start_ns, coalesce(first_ns, end_ns), true FROM extents LEFT JOIN ends USING (worker_id)
    WHERE NOT $rows_disjoint
    UNION ALL
    SELECT worker_id, last_ns, end_ns, true FROM extents JOIN ends USING (worker_id)
)
SELECT worker_id, from_ns, to_ns, is_at_end
FROM pauses
WHERE from_ns < to_ns
    AND (is_at_end OR to_ns - from_ns >= $idle_after_ns
        OR reaches_edge(from_ns, to_ns, $first_origin_ns, $first_cell_ns)
        OR reaches_edge(from_ns, to_ns, $second_origin_ns, $second_cell_ns))
ORDER BY worker_id, from_ns
