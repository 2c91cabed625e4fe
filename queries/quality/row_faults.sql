-- Which rows violate the trace format, and how many?
--
-- in   worker_row_faults, sample_row_faults
-- out  table_name  VARCHAR  table
-- out  fault       VARCHAR  what is wrong with the rows
-- out  rows        BIGINT   number of such rows
-- grain: one row per table and fault with at least one row
-- partition: driver
SELECT table_name, fault, rows FROM worker_row_faults
UNION ALL
SELECT table_name, fault, rows FROM sample_row_faults
ORDER BY table_name, fault
