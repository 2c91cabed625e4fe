-- How long did a decode pass take at each batch size?
--
-- in   engine_steps, workers
-- arg  one_row_in     BIGINT   percentiles are of one row in this many
-- out  worker_id     VARCHAR  engine
-- out  running       INTEGER  requests in the batch
-- out  passes        BIGINT   forward passes that only decoded
-- out  decode_tokens BIGINT   tokens that they produced: several per request and pass with speculative decoding
-- out  pass_mean_s   DOUBLE   mean time of a pass, seconds
-- out  pass_p50_s    DOUBLE   median over rows of the row's mean pass, seconds; NULL if no row was taken
-- out  pass_p95_s    DOUBLE   95th percentile over rows, seconds; NULL if no row was taken
-- out  between_mean_s DOUBLE  mean time between two passes inside a row, seconds
-- grain: one row per engine and batch size
-- partition: worker
-- merge: concatenate
WITH batches AS (
    SELECT
        worker_id,
        running,
        sum(forward_passes) AS passes,
        sum(decode_tokens)::BIGINT AS decode_tokens,
        sum(busy_ns) AS busy_ns,
        sum(end_ns - start_ns - busy_ns) AS between_ns,
        quantile_cont(busy_ns / forward_passes, [0.5, 0.95]) FILTER (is_one_in(start_ns, $one_row_in))
            AS pass_quantiles_ns
    FROM policy_rows()
    WHERE prefill_tokens = 0 AND decode_tokens > 0 AND forward_passes > 0 AND busy_ns IS NOT NULL
    GROUP BY worker_id, running
)
SELECT
    worker_id,
    running,
    passes::BIGINT AS passes,
    decode_tokens,
    busy_ns / passes / 1e9 AS pass_mean_s,
    pass_quantiles_ns[1] / 1e9 AS pass_p50_s,
    pass_quantiles_ns[2] / 1e9 AS pass_p95_s,
    between_ns / passes / 1e9 AS between_mean_s
FROM batches
ORDER BY worker_id, running
