-- What did each engine do in the cells of two grids, cut where its spans begin and end?
--
-- in   worker_spans, worker_extents, activities, train_steps, weight_updates, engine_steps
-- arg  first_origin_ns  BIGINT   start of the first cell of one grid, UTC epoch
-- arg  first_cell_ns    BIGINT   length of its cells
-- arg  second_origin_ns BIGINT   start of the first cell of another grid, UTC epoch; may be the same
-- arg  second_cell_ns   BIGINT   length of its cells
-- out  worker_id        VARCHAR  engine
-- out  first_ns         BIGINT   start of its first row, UTC epoch
-- out  last_ns          BIGINT   latest end of its rows, UTC epoch
-- out  is_timed         BOOLEAN  true for rows that end after their start, false for the invalid others
-- out  decodes          BOOLEAN  whether the rows produced tokens; NULL if not counted for each pass
-- out  prefills         BOOLEAN  whether they computed prompt tokens
-- out  rows             BIGINT   engine rows
-- out  row_ns           BIGINT   their time
-- out  passing_ns       BIGINT   time inside forward passes, at most the row's time; the row's time if not recorded
-- out  busy_ns          BIGINT   time inside forward passes as recorded; NULL if no row records it
-- out  decode_tokens    BIGINT   tokens produced
-- out  running_ns       BIGINT   running requests times the time of the row
-- out  running_passes   BIGINT   running requests times forward passes; NULL if no row counts them
-- out  running_max      INTEGER  maximum running requests
-- out  waiting_ns       BIGINT   waiting requests times the time of the row
-- out  waiting_max      INTEGER  maximum waiting requests
-- out  kv_row_ns        BIGINT   time of the rows that record the KV cache use; NULL if none does
-- out  kv_token_ns      HUGEINT  tokens resident in the cache times the time of the row
-- out  kv_max_tokens    BIGINT   maximum resident tokens
-- out  kv_preemptions   BIGINT   preemptions in the rows that record the KV cache use; NULL if not recorded
-- grain: one row per engine, part of a cell, is_timed, decodes and prefills; an engine row that crosses an edge is one
-- partition: worker
-- merge: concatenate
--
-- All rows of a part are in one cell of each grid and in the same spans, so any bucket of either is a sum of parts.
WITH extents AS (
    SELECT worker_id, start_ns AS from_ns, end_ns AS to_ns FROM worker_extents WHERE gpu_count > 0 AND has_rows
),
edges AS (
    SELECT worker_id, unnest([start_ns, end_ns]) AS at_ns FROM worker_spans SEMI JOIN extents USING (worker_id)
    UNION
    SELECT worker_id, unnest(cell_edges(from_ns, to_ns, $first_origin_ns, $first_cell_ns)) FROM extents
    UNION
    SELECT worker_id, unnest(cell_edges(from_ns, to_ns, $second_origin_ns, $second_cell_ns)) FROM extents
),
parts AS MATERIALIZED (
    SELECT worker_id, at_ns AS from_ns, lead(at_ns) OVER (PARTITION BY worker_id ORDER BY at_ns) AS to_ns
    FROM edges
    JOIN extents USING (worker_id)
    WHERE at_ns BETWEEN from_ns AND extents.to_ns
),
width AS ( -- width of the bins for looking up rows, about the length of a part
    SELECT greatest(1, sum(to_ns - from_ns) // greatest(1, count(*)))::BIGINT AS ns FROM parts
),
places AS (
    SELECT worker_id, from_ns, to_ns, unnest(range(from_ns // ns, (to_ns - 1) // ns + 1)) AS place
    FROM parts CROSS JOIN width
    WHERE from_ns < to_ns
),
placed AS (
    SELECT
        engine.*,
        end_ns > start_ns AS is_timed,
        end_ns - start_ns AS length_ns,
        source = 'sampled' OR (source = 'log' AND forward_passes IS NULL) AS is_window,
        places.from_ns AS part_ns,
        -- a row outside all parts is cut only if it reaches into its worker's lifetime
        if(places.to_ns IS NULL, start_ns < extents.from_ns AND end_ns > extents.from_ns, end_ns > places.to_ns)
            AS is_cut
    FROM engine_steps AS engine
    CROSS JOIN width
    LEFT JOIN extents USING (worker_id)
    LEFT JOIN places
        ON engine.worker_id = places.worker_id AND start_ns // ns = places.place
        AND start_ns >= places.from_ns AND start_ns < places.to_ns
)
SELECT
    worker_id,
    min(start_ns) AS first_ns,
    max(end_ns) AS last_ns,
    is_timed,
    if(is_window, NULL, decode_tokens > 0) AS decodes,
    if(is_window, NULL, prefill_tokens > 0) AS prefills,
    count(*) AS rows,
    sum(length_ns)::BIGINT AS row_ns,
    sum(if(busy_ns IS NULL, length_ns, greatest(0, least(busy_ns, length_ns))))::BIGINT AS passing_ns,
    sum(busy_ns)::BIGINT AS busy_ns,
    sum(decode_tokens)::BIGINT AS decode_tokens,
    sum(running * length_ns)::BIGINT AS running_ns,
    sum(forward_passes::BIGINT * running)::BIGINT AS running_passes,
    max(running) AS running_max,
    sum(waiting * length_ns)::BIGINT AS waiting_ns,
    max(waiting) AS waiting_max,
    sum(if(kv_used_tokens IS NULL, NULL, length_ns))::BIGINT AS kv_row_ns,
    sum(kv_used_tokens * length_ns) AS kv_token_ns,
    max(kv_used_tokens) AS kv_max_tokens,
    sum(if(kv_used_tokens IS NULL, NULL, preemptions))::BIGINT AS kv_preemptions
FROM placed
GROUP BY
    worker_id, part_ns, is_timed, decodes, prefills, if(is_cut, start_ns, NULL), if(is_cut, end_ns, NULL),
    if(part_ns IS NULL, (start_ns - $first_origin_ns) // $first_cell_ns, NULL),
    if(part_ns IS NULL, (start_ns - $second_origin_ns) // $second_cell_ns, NULL)
ORDER BY worker_id, first_ns, last_ns, is_timed, decodes, prefills
