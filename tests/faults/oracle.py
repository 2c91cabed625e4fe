"""Looks at a run in a process of its own, and judges what came of a mutation."""

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rlscope import pipeline
from rlscope.analysis.bottleneck import dropped_ratio, judge, measure_losses
from rlscope.analysis.interval import Interval
from rlscope.analysis.run_facts import measure_throughput
from rlscope.errors import RlscopeError
from rlscope.trace.store import OpenRun
from tests.faults.mutations import Mutation

LIMIT_S: Final = 60
LIMIT_BYTES: Final = 2 * 10**9
Verdict = Literal["same", "named", "refused", "silent", "traceback", "hang", "memory"]
FAULTS: Final = ("silent", "traceback", "hang", "memory")


class Looked(NamedTuple):
    """What a process said of a run."""

    end: Literal["seen", "refused", "traceback", "hang", "memory"]
    facts: Mapping[str, Any]
    lines: tuple[str, ...]
    """What it says of the data; the message of an error, or the traceback."""
    peak_bytes: int
    wall_s: float


def look(folder: Path, *, whole: bool = False) -> Looked:
    """What the analysis makes of a run: its numbers, and its words on the data.

    whole: with the model, and in every format.
    """
    started_s = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(folder, writing, whole)
    os.close(writing)
    content = _read(reading, child)
    _, status, usage = os.wait4(child, 0)
    peak_bytes, wall_s = usage.ru_maxrss * 1024, time.monotonic() - started_s
    if content is None:
        return Looked("hang", {}, (), peak_bytes, wall_s)
    if not content:
        return Looked("memory", {}, (f"ended with status {status}",), peak_bytes, wall_s)
    found = json.loads(content)
    end = "memory" if peak_bytes > LIMIT_BYTES else found["end"]
    return Looked(end, found["facts"], tuple(found["lines"]), peak_bytes, wall_s)


def judge_mutation(mutation: Mutation, untouched: Looked, looked: Looked) -> Verdict:
    """Whether the answer is that of the untouched run, or names the fault; else what is wrong with it."""
    if looked.end != "seen":
        return looked.end
    if looked.facts == untouched.facts or mutation.is_truth:
        return "same"
    new = [line for line in looked.lines if line not in untouched.lines]
    return "named" if any(word in line for line in new for word in mutation.about) else "silent"


def _read(pipe: int, child: int) -> bytes | None:
    """All that the child wrote; None if it took too long."""
    parts: list[bytes] = []
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.close(pipe)
            return None
        part = os.read(pipe, 1 << 16)
        if not part:
            os.close(pipe)
            return b"".join(parts)
        parts.append(part)


def _be_the_child(folder: Path, pipe: int, whole: bool) -> None:
    try:
        # Beside what the libraries reserve without using it.
        resource.setrlimit(resource.RLIMIT_DATA, (4 * LIMIT_BYTES, 4 * LIMIT_BYTES))
        answer = _answer(folder, whole)
        with os.fdopen(pipe, "w", encoding="utf-8") as out:
            json.dump(answer, out)
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        os._exit(1)


def _answer(folder: Path, whole: bool) -> dict[str, Any]:
    try:
        if whole:
            _every_format(folder)
        facts, lines = pipeline._read(folder, _facts)
    except RlscopeError as error:
        return {"end": "refused", "facts": {}, "lines": [str(error)]}
    except BaseException:
        return {"end": "traceback", "facts": {}, "lines": [traceback.format_exc()]}
    return {"end": "seen", "facts": facts, "lines": lines}


def _facts(run: OpenRun) -> tuple[dict[str, Any], list[str]]:
    """The numbers of an analysis without the model, and what it says of the data."""
    grid = pipeline.focused_grid(run)
    answers = pipeline._ask_all(run, grid, pipeline.say_nothing)
    evidence = pipeline._evidence(run, answers, pipeline.say_nothing)
    judged, dropped = Interval(grid.from_ns, grid.to_ns), dropped_ratio(answers["judged_outcomes"])
    losses = measure_losses(answers["ledger_timeline"], grid.bucket_ns, judged, dropped)
    verdict = judge(evidence.run, answers["ledger_timeline"], grid.bucket_ns, judged, losses, None)
    facts = {
        "run": (evidence.run.steps, evidence.run.tokens_trained, evidence.run.samples_trained, evidence.run.n_gpus),
        "duration_s": evidence.run.duration_s,
        "ledger": [(each.role, each.state, each.reason, each.gpu_ns) for each in evidence.ledger.states],
        "verdict": (verdict.bottleneck, [(each.cause, each.gpu_s) for each in verdict.losses]),
        "throughput": str(measure_throughput(evidence.run, answers)),
        "staleness": str(evidence.staleness),
        "answers": {name: answers[name].write_json() for name in SETTLED},
    }
    return json.loads(json.dumps(facts)), lines_of(evidence.data_quality)


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
    from rlscope.reports.page.html import render
    from rlscope.reports.terminal.card import print_card

    analysis = rlscope.analyze(folder)
    json.loads(analysis.to_json())
    analysis.to_markdown().encode()
    render(analysis.result).encode()
    print_card(analysis.result, Console(file=io.StringIO(), force_terminal=True))
    checked = rlscope.check(folder)
    for form in ("text", "json", "markdown", "junit", "github"):
        checked.to_text(form).encode()
