import subprocess
import sys

HEAVY = ("duckdb", "polars", "altair", "typer", "torch", "rlscope", "pynvml")


def test_importing_and_recording_load_nothing_that_a_training_image_may_lack(tmp_path):
    program = f"""
import sys, threading, signal, logging
before = (threading.active_count(), signal.getsignal(signal.SIGTERM), list(logging.root.handlers))
import rlscope_otel, rlscope_otel.exporters
assert before == (threading.active_count(), signal.getsignal(signal.SIGTERM), list(logging.root.handlers))
with rlscope_otel.start_run({str(tmp_path)!r}, "sampler") as run:
    run.engine_step(0, 1)
own = logging.getLogger("rlscope_otel")
assert (own.handlers, own.level) == ([], logging.NOTSET)
assert not [name for name in {HEAVY!r} if name in sys.modules]
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
