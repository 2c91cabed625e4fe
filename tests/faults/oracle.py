"""Looks at a run in a process of its own, and judges what came of a mutation."""

import contextlib
import json
import multiprocessing
import resource
import signal
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from unittest.mock import patch

from rlscope import pipeline
from rlscope.analysis import advise
from rlscope.errors import RlscopeError
from rlscope.model.forecast.result import NoModelResult
from tests.faults.mutations import Mutation

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])
"""Of a process that has the libraries loaded and no thread started: the child of one with threads waits for their
locks."""
LIMIT_S: Final = 600
LIMIT_CPU_S: Final = 60
"""Maximum CPU time: on a busy machine, a minute passes without any fault."""
LIMIT_BYTES: Final = 2 * 10**9
Verdict = Literal["same", "named", "refused", "silent", "traceback", "hang", "memory"]
FAULTS: Final = ("silent", "traceback", "hang", "memory")


class Looked(NamedTuple):
    """What a process said of a run."""

    end: Literal["seen", "refused", "traceback", "hang", "memory"]
    facts: Mapping[str, Any] = {}
    lines: tuple[str, ...] = ()
    """What it says of the data; the message of an error, or the traceback."""


def look(folder: Path, *, whole: bool = False) -> Looked:
    """What the analysis makes of a run: its numbers, and its words on the data.

    whole: with the model, and in every format.
    """
    reading, writing = _CONTEXT.Pipe(duplex=False)
    child = _CONTEXT.Process(target=_be_the_child, args=(folder, writing, whole))
    child.start()
    writing.close()
    found: dict[str, Any] | None = None
    if not reading.poll(LIMIT_S):
        child.kill()
        child.join()
        return Looked("hang")
    with contextlib.suppress(EOFError):
        found = reading.recv()
    child.join()
    if found is None:
        is_hang = child.exitcode == -signal.SIGXCPU
        return Looked("hang" if is_hang else "memory", lines=(f"ended with {child.exitcode}",))
    end = "memory" if found["peak_bytes"] > LIMIT_BYTES else found["end"]
    return Looked(end, found["facts"], tuple(found["lines"]))


def judge_mutation(mutation: Mutation, untouched: Looked, looked: Looked) -> Verdict:
    """Whether the answer is that of the untouched run, or names the fault; else what is wrong with it."""
    if looked.end != "seen":
        return looked.end
    if looked.facts == untouched.facts or mutation.is_truth:
        return "same"
    new = [line for line in looked.lines if line not in untouched.lines]
    return "named" if any(word in line for line in new for word in mutation.about) else "silent"


def _be_the_child(folder: Path, pipe: Connection, whole: bool) -> None:
    # Beside what the libraries reserve without using it.
    resource.setrlimit(resource.RLIMIT_DATA, (4 * LIMIT_BYTES, 4 * LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU_S, LIMIT_CPU_S + 1))
    answer = _answer(folder, whole)
    pipe.send({**answer, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
    pipe.close()


def _answer(folder: Path, whole: bool) -> dict[str, Any]:
    try:
        if whole:
            _every_format(folder)
        facts, lines = _facts(folder)
    except RlscopeError as error:
        return {"end": "refused", "facts": {}, "lines": [str(error)]}
    except BaseException:
        return {"end": "traceback", "facts": {}, "lines": [traceback.format_exc()]}
    return {"end": "seen", "facts": facts, "lines": lines}


def _facts(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The numbers of an analysis without the model, and what it says of the data."""
    with patch.object(advise, "advise", lambda *_: NoModelResult("not asked")):
        analysis = pipeline.analyze(folder)
    run, verdict = analysis.run, analysis.verdict
    facts = {
        "run": (run.steps, run.tokens_trained, run.samples_trained, run.total_gpus),
        "duration_s": run.duration_s,
        "ledger": [(each.role, each.state, each.reason, each.gpu_ns) for each in analysis.ledger.states],
        "verdict": (verdict.bottleneck, [(each.cause, each.gpu_s) for each in verdict.losses]),
        "throughput": str(analysis.throughput),
        "staleness": str(analysis.staleness),
        "answers": {name: analysis.answers[name].write_json() for name in SETTLED},
    }
    return json.loads(json.dumps(facts)), lines_of(analysis.data_quality)


SETTLED: Final = (
    "training_steps",
    "queue_wait_counts",
    "response_lengths",
    "weight_update_latency",
    "delivery_outcomes",
)


def lines_of(quality: Any) -> list[str]:
    """Everything that an analysis says of its data."""
    skipped = [f"{file.path} was skipped: {file.why}" for file in quality.skipped_files]
    dropped = [f"Capture dropped {count} rows of {table}" for table, count in quality.dropped_rows.items()]
    ends = [f"{worker_id} has no end" for worker_id in quality.workers_without_end]
    return [*skipped, *dropped, *ends, *map(str, quality.completeness.gaps), *quality.gaps]


def _every_format(folder: Path) -> None:
    """The whole analysis, its page, its JSON, its Markdown and its card, and a check."""
    import io

    from rich.console import Console

    import rlscope
    from rlscope.reports.card import card_blocks
    from rlscope.reports.page.html import render
    from rlscope.reports.terminal import print_blocks

    analysis = rlscope.analyze(folder)
    json.loads(analysis.to_json())
    analysis.to_markdown().encode()
    render(analysis).encode()
    print_blocks(card_blocks(analysis), Console(file=io.StringIO(), force_terminal=True))
    checked = rlscope.check(folder)
    for form in ("text", "json", "markdown"):
        checked.to_text(form).encode()
