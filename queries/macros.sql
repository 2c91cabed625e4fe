-- Interval arithmetic shared by several queries, as macros that are loaded when a run is opened.
-- They read the results of worker_extents.sql and worker_spans.sql, so a query that uses them lists these among its
-- inputs.

-- Is a row one of the sampled ones, one in this many? It depends on the row's time alone, not on order or partition.
CREATE MACRO is_one_in(value, rows) AS rows = 1 OR (hash(value) >> 40)::BIGINT % rows = 0;

-- In which quarter of ordered rows, from 1, is the one at a place, from 1? As ntile(4) says without sorting them.
CREATE MACRO quarter_of(place, rows) AS
1 + if(place <= rows % 4 * (rows // 4 + 1), (place - 1) // (rows // 4 + 1), (place - 1 - rows % 4) // (rows // 4));

-- Does a time begin at an edge of a grid's cells, or end in a later cell than it begins?
CREATE MACRO reaches_edge(from_ns, to_ns, origin_ns, cell_ns) AS
((from_ns - origin_ns) // cell_ns < (to_ns - origin_ns) // cell_ns OR (from_ns - origin_ns) % cell_ns = 0);

-- At which times between two times do cells begin? The result may include one earlier start.
CREATE MACRO cell_edges(from_ns, to_ns, origin_ns, cell_ns) AS
list_transform(
    range((from_ns - origin_ns) // cell_ns, (to_ns - origin_ns) // cell_ns + 1),
    lambda place: origin_ns + place * cell_ns
);

-- Does a time lie in one of some spans with from_ns and to_ns, or begin one? NULL has none.
CREATE MACRO starts_in_any(at_ns, spans) AS
spans IS NOT NULL AND len(list_filter(spans, lambda span: at_ns >= span.from_ns AND at_ns < span.to_ns)) > 0;

-- The engine rows of the policy's engines. Those of auxiliary engines are another model's.
CREATE MACRO policy_rows() AS TABLE
SELECT engine_steps.* FROM engine_steps
ANTI JOIN (SELECT worker_id FROM workers WHERE role = 'auxiliary') AS auxiliary USING (worker_id);

-- The spans of the workers with GPUs or, with of_controllers, of those without, cut at the edges of cells of cell_ns.
-- The pieces of the extent are the worker's cells.
CREATE MACRO span_pieces(origin_ns, cell_ns, of_controllers := false) AS TABLE
WITH spans AS (
    SELECT worker_id, start_ns, end_ns, state, reason, layer,
        unnest(range((start_ns - origin_ns) // cell_ns, (end_ns - 1 - origin_ns) // cell_ns + 1)) AS cell
    FROM worker_spans
    WHERE (gpu_count = 0) = of_controllers
)
SELECT
    worker_id, cell, state, reason, layer,
    start_ns AS began_ns,
    end_ns AS ended_ns,
    greatest(start_ns, origin_ns + cell * cell_ns) AS start_ns,
    least(end_ns, origin_ns + (cell + 1) * cell_ns) AS end_ns
FROM spans;

-- What did the passes of an engine row do? A sampled row, and a line of a log that does not count passes, only show
-- generating: their tokens were counted between two readings, not per pass.
CREATE MACRO pass_state(decodes, prefills) AS
CASE
    WHEN decodes IS NULL THEN 'generating'
    WHEN decodes AND prefills THEN 'mixed_passes'
    WHEN decodes THEN 'decoding'
    WHEN prefills THEN 'prefilling'
    ELSE 'other_passes'
END;

-- How much of a row's busy time is in its piece from start_ns to end_ns? In proportion to length; the pieces of a row
-- add up exactly.
CREATE MACRO busy_share(busy_ns, began_ns, ended_ns, start_ns, end_ns) AS
(busy_ns::HUGEINT * (end_ns - began_ns) // (ended_ns - began_ns)
    - busy_ns::HUGEINT * (start_ns - began_ns) // (ended_ns - began_ns))::BIGINT;

-- The engine rows, clipped to the extents of their workers, for the workers in the table named by whose.
-- A row without its time inside passes cannot be split and counts as one piece.
CREATE MACRO clipped_rows(whose) AS TABLE
WITH extents AS (
    SELECT worker_id, start_ns, end_ns FROM worker_extents
    WHERE gpu_count > 0 AND worker_id IN (SELECT worker_id FROM query_table(whose))
),
clipped AS (
    SELECT
        engine_steps.worker_id,
        greatest(engine_steps.start_ns, extents.start_ns) AS began_ns,
        least(engine_steps.end_ns, extents.end_ns) AS ended_ns,
        busy_ns,
        source = 'sampled' OR (source = 'log' AND forward_passes IS NULL) AS is_window,
        if(is_window, NULL, decode_tokens > 0) AS decodes,
        if(is_window, NULL, prefill_tokens > 0) AS prefills
    FROM engine_steps
    JOIN extents USING (worker_id)
)
SELECT
    worker_id, began_ns, ended_ns,
    if(busy_ns IS NULL, ended_ns - began_ns, greatest(0, least(busy_ns, ended_ns - began_ns))) AS busy_ns,
    decodes, prefills
FROM clipped
WHERE began_ns < ended_ns;

-- The evaluations and start-ups, in each cell that they overlap. Engine rows that start inside one are left out,
-- because the evaluation or start-up accounts for that time.
CREATE MACRO claims(origin_ns, cell_ns) AS TABLE
SELECT worker_id, cell, began_ns AS from_ns, ended_ns AS to_ns
FROM span_pieces(origin_ns, cell_ns)
WHERE state IN ('eval', 'startup');

-- The engine rows split at the edges of cells, without rows inside evaluations and start-ups.
CREATE MACRO engine_pieces(origin_ns, cell_ns, whose) AS TABLE
WITH placed AS (
    SELECT worker_id, began_ns, ended_ns, busy_ns, pass_state(decodes, prefills) AS state,
        (began_ns - origin_ns) // cell_ns AS first_cell, (ended_ns - 1 - origin_ns) // cell_ns AS last_cell
    FROM clipped_rows(whose)
),
free AS (
    SELECT worker_id, began_ns, ended_ns, busy_ns, state, first_cell, last_cell
    FROM placed
    WHERE NOT EXISTS (
        SELECT 1 FROM claims(origin_ns, cell_ns) AS claimed
        WHERE claimed.worker_id = placed.worker_id
            AND claimed.cell = placed.first_cell
            AND placed.began_ns >= claimed.from_ns
            AND placed.began_ns < claimed.to_ns
    )
),
straddling AS (
    SELECT
        worker_id, began_ns, ended_ns, busy_ns, state, cell,
        greatest(began_ns, origin_ns + cell * cell_ns) AS start_ns,
        least(ended_ns, origin_ns + (cell + 1) * cell_ns) AS end_ns
    FROM (SELECT *, unnest(range(first_cell, last_cell + 1)) AS cell FROM free WHERE first_cell < last_cell)
)
SELECT worker_id, first_cell AS cell, began_ns, ended_ns, began_ns AS start_ns, ended_ns AS end_ns, busy_ns, state
FROM free
WHERE first_cell = last_cell
UNION ALL
SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, busy_share(busy_ns, began_ns, ended_ns, start_ns, end_ns),
    state
FROM straddling;

-- Which span or, with with_rows, engine row does each time belong to, of the workers in the table named by whose? Of
-- those that cover it, the one that started last (the innermost, if spans nest).
--   heads: from its start to the next start, a piece is innermost; the rest are gaps.
--   gaps: belong to a piece that extends past a later start. These are flattened first: each covers a row of intervals
--   between edges, as at most two aligned blocks of intervals on each level (of 1, 2, 4, ... intervals); an interval
--   belongs to the last piece that covers a block with it. So rows that all overlap cost n log n, not n squared.
CREATE MACRO innermost_pieces(origin_ns, cell_ns, with_rows, whose, of_controllers := false) AS TABLE
WITH pieces AS (
    SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, NULL::BIGINT AS busy_ns, state, reason, layer
    FROM span_pieces(origin_ns, cell_ns, of_controllers := of_controllers)
    WHERE worker_id IN (SELECT worker_id FROM query_table(whose))
    UNION ALL
    SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, busy_ns, state, NULL, 4
    FROM engine_pieces(origin_ns, cell_ns, whose)
    WHERE with_rows
),
ordered AS MATERIALIZED (
    SELECT worker_id, cell, began_ns, ended_ns, start_ns, end_ns, busy_ns, state, reason, layer,
        max(end_ns) OVER (PARTITION BY worker_id, cell) AS cell_end_ns,
        lead(start_ns) OVER (
            PARTITION BY worker_id, cell ORDER BY began_ns, ended_ns DESC, layer, state, reason
        ) AS next_ns
    FROM pieces
),
reaching AS MATERIALIZED (
    SELECT * EXCLUDE (next_ns, cell_end_ns), row_number() OVER (
        PARTITION BY worker_id, cell ORDER BY began_ns, ended_ns DESC, layer, state, reason NULLS FIRST
    ) AS place
    FROM ordered WHERE end_ns > next_ns
),
edges AS MATERIALIZED (
    SELECT worker_id, cell, place, edge_ns,
        dense_rank() OVER (PARTITION BY worker_id, cell ORDER BY edge_ns) - 1 AS edge
    FROM (SELECT worker_id, cell, place, unnest([start_ns, end_ns]) AS edge_ns FROM reaching)
),
flat AS (
    SELECT worker_id, cell, edge, edge_ns AS from_ns,
        lead(edge_ns) OVER (PARTITION BY worker_id, cell ORDER BY edge) AS to_ns,
        unnest(range(0, 1 + floor(log2(1 + max(edge) OVER (PARTITION BY worker_id, cell)))::BIGINT)) AS level
    FROM (SELECT DISTINCT worker_id, cell, edge, edge_ns FROM edges)
),
levels AS (
    SELECT worker_id, cell, place, level,
        (first_edge + (1 << level) - 1) >> level AS first_block, last_edge >> level AS end_block
    FROM (
        SELECT worker_id, cell, place, min(edge) AS first_edge, max(edge) AS last_edge,
            unnest(range(0, 1 + floor(log2(max(edge) - min(edge)))::BIGINT)) AS level
        FROM edges
        GROUP BY worker_id, cell, place
    )
),
blocks AS (
    SELECT worker_id, cell, level, block, max(place) AS place
    FROM (
        SELECT worker_id, cell, place, level, unnest([first_block, end_block - 1]) AS block
        FROM levels
        WHERE first_block < end_block
    )
    GROUP BY worker_id, cell, level, block
),
owners AS (
    SELECT flat.worker_id, flat.cell, from_ns, to_ns, max(place) AS place
    FROM flat
    JOIN blocks
        ON flat.worker_id = blocks.worker_id AND flat.cell = blocks.cell
        AND flat.level = blocks.level AND flat.edge >> flat.level = blocks.block
    GROUP BY ALL
),
owned AS (
    SELECT worker_id, cell, from_ns, to_ns, began_ns, ended_ns, busy_ns, state, reason, layer
    FROM owners
    JOIN reaching USING (worker_id, cell, place)
),
gaps AS (
    SELECT worker_id, cell, end_ns AS from_ns, coalesce(next_ns, cell_end_ns) AS to_ns
    FROM ordered
    WHERE end_ns < coalesce(next_ns, cell_end_ns)
)
SELECT worker_id, cell, began_ns, ended_ns, start_ns, least(end_ns, coalesce(next_ns, end_ns)) AS end_ns,
    busy_ns, state, reason, layer = 4 AS is_engine
FROM ordered
WHERE start_ns < least(end_ns, coalesce(next_ns, end_ns))
UNION ALL
SELECT gaps.worker_id, gaps.cell, began_ns, ended_ns,
    greatest(gaps.from_ns, owned.from_ns), least(gaps.to_ns, owned.to_ns), busy_ns, state, reason, layer = 4
FROM gaps
JOIN owned
    ON gaps.worker_id = owned.worker_id AND gaps.cell = owned.cell
    AND owned.from_ns < gaps.to_ns AND owned.to_ns > gaps.from_ns;
