HEAVY = ("duckdb", "polars", "altair", "typer", "torch", "rlscope", "pynvml")


def test_importing_and_recording_load_nothing_that_a_training_image_may_lack(start_script):
    program = f"""
import sys, threading, signal, logging
before = (threading.active_count(), signal.getsignal(signal.SIGTERM), list(logging.root.handlers))
import rlscope_otel, rlscope_otel.exporters
assert before == (threading.active_count(), signal.getsignal(signal.SIGTERM), list(logging.root.handlers))
with rlscope_otel.start_run() as run:
    run.engine_step(0, 1)
own = logging.getLogger("rlscope_otel")
assert (own.handlers, own.level) == ([], logging.NOTSET)
assert not [name for name in {HEAVY!r} if name in sys.modules]
"""
    process = start_script(program)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 0)
