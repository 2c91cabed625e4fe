"""The hooks' metrics as Prometheus names them, once an OpenTelemetry exporter has translated them.

Dots become underscores, seconds and `_total` become part of the name. The names themselves are those of
`rlscope_otel.conventions`; a test scrapes the hooks to hold both to one another.
"""

from typing import Final

RUN: Final = "rlscope_run_id"
WORKER: Final = "rlscope_worker_id"
ROLE: Final = "rlscope_role"
STATE: Final = "rlscope_state"
REASON: Final = "rlscope_wait_reason"
QUEUE: Final = "rlscope_queue"
STALENESS: Final = "rlscope_staleness"
PHASE: Final = "rlscope_weights_phase"
OUTCOME: Final = "rlscope_outcome"

RUNNING: Final = "rlscope_engine_running"
WAITING: Final = "rlscope_engine_waiting"
KV_USED: Final = "rlscope_engine_kv_used"
KV_CAPACITY: Final = "rlscope_engine_kv_capacity"
DECODE: Final = "rlscope_engine_decode_total"
QUEUE_DEPTH: Final = "rlscope_queue_depth"
QUEUE_CAPACITY: Final = "rlscope_queue_capacity"
DELIVERIES: Final = "rlscope_deliveries_total"
STEPS: Final = "rlscope_train_steps_total"
LAST_STEP: Final = "rlscope_train_last_step_seconds"
STEP_PERIOD: Final = "rlscope_train_period_seconds"
TRAINED: Final = "rlscope_train_staleness_total"
TOKEN_AGE: Final = "rlscope_train_token_age_total"
OVER_CAP: Final = "rlscope_train_over_cap_total"
VERSION: Final = "rlscope_weights_latest"
UPDATES: Final = "rlscope_weights_updates_total"
UPDATE_TIME: Final = "rlscope_weights_update_time_seconds_total"
TIME: Final = "rlscope_worker_time_seconds_total"
GPUS: Final = "rlscope_worker_gpus"
HEARTBEAT: Final = "rlscope_worker_heartbeat_seconds"
STOPPED: Final = "rlscope_worker_stopped_seconds"
DROPPED: Final = "rlscope_rows_dropped_total"
WRITTEN: Final = "rlscope_rows_written_total"

BUCKETS: Final = ((0, "0"), (1, "1"), (2, "2"), (4, "3-4"), (8, "5-8"), (16, "9-16"), (32, "17-32"), (None, "33+"))
"""Staleness in versions: the last age of each bucket, and the bucket's name; the last bucket has no end."""
