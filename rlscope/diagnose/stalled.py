"""A worker is stuck, and others may wait for it: a run that hangs, or is about to.

Symptom: no step ends any more, GPUs are idle, and nothing raises.
Evidence: each flush of a worker states what it is in the middle of and since when. The longest phase of that kind that
a worker of its role has ended shows how long it may take.
Threshold: a phase is stuck once it has lasted a quarter and 5 s longer than the longest of its kind. Without one to
compare with, it is stuck after 5 minutes if it is a wait or a weight update, and after half an hour if it may take long
at first: start-up, training, evaluation, checkpoints. A worker that was not heard for 30 s, while others were, is
silent; one that is in no phase and has recorded nothing for 15 s is quiet. A worker that is stuck in anything but a
wait holds up the others, and so does one that waits for an environment. So does a silent one if another waits, and a
quiet one if all others wait. Where all wait, they wait for each other. Always critical.
Remedy: look at the stack of the worker that is stuck.
Limits: hooks that record a phase only after it has ended show nothing of it; their workers are quiet. Nothing is found
once every trainer has recorded its stop, nor while a worker that others wait for still moves, however slowly.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from rlscope.analysis.ledger import TRAINER_ROLES
from rlscope.analysis.result import EvidenceValue, Finding
from rlscope.diagnose.evidence import Evidence, FindingRule

# The longest of many phases is exceeded by a tenth or so now and then; of short ones by a busy disk or processor.
BEYOND_LONGEST_RATIO: Final = 1.25
BEYOND_LONGEST_S: Final = 5.0
# A first wait or weight update lasts as long as others load their weights and compile.
FIRST_WAIT_S: Final = 300.0
# Large models take many minutes to load, and a first evaluation as long as it was made.
FIRST_WORK_S: Final = 1800.0
# Fifteen times the interval of flushes: a busy disk delays a few of them.
SILENT_S: Final = 30.0
# A quiet worker is heard all the time, and counts only where every other one waits for longer than it ever did.
QUIET_S: Final = 15.0

_UPDATING: Final[Mapping[str, str]] = {
    "publish": "publishing version {version}",
    "transfer": "transferring version {version}",
    "apply": "applying version {version}",
    "drain": "stopping generation for version {version}",
    "gather": "gathering version {version}",
    "convert": "converting version {version}",
    "install": "installing version {version}",
    "resume": "resuming generation with version {version}",
    "weight_update": "updating weights",
}
_WAITS: Final = frozenset({"wait", *_UPDATING})
_DOING: Final[Mapping[str, str]] = {
    **_UPDATING,
    "train": "training",
    "eval": "evaluating",
    "checkpoint": "saving a checkpoint",
    "startup": "starting up",
    "generate": "generating",
    "logprobs": "computing log-probabilities",
    "reward": "computing rewards",
    "wait": "waiting for {reason}",
}
_REASONS: Final[Mapping[str, str]] = {
    "backpressure": "room in the queue",
    "staleness_cap": "the staleness cap",
    "barrier": "the other ranks",
    "environment": "an environment",
}


@dataclass(frozen=True, slots=True)
class _Worker:
    worker_id: str
    doing: str | None
    """Phase that it is stuck in, in words; None if it moves."""
    stuck_s: float
    waits_for: str | None
    """Thing that it waits for, in words; None if it does not wait for another worker."""
    is_heard: bool
    moves: bool


def stall_of(open_phases: pl.DataFrame, now_ns: int) -> Mapping[str, EvidenceValue] | None:
    """Return who is stuck and who waits, as evidence of the finding; None if the run moves.

    open_phases: the answer to the query of that name.
    """
    trainers = open_phases.filter(pl.col("role").is_in(TRAINER_ROLES))
    if len(trainers) and trainers["has_end"].all():
        return None
    running = open_phases.filter(~pl.col("has_end"))
    workers = [
        _worker(str(worker_id), rows.to_dicts(), now_ns)
        for (worker_id,), rows in running.group_by("worker_id", maintain_order=True)
    ]
    waits = [each for each in workers if each.waits_for is not None]
    # A rank that waits for another one shows less than what that one waits for.
    waits = [each for each in waits if each.waits_for != _REASONS["barrier"]] or waits
    waiting = _longest(waits)
    moving = sum(each.moves for each in workers)
    stuck = _longest(each for each in workers if each.is_heard and each.doing is not None and each.waits_for is None)
    if stuck is None and waiting is not None:
        stuck = _longest(each for each in workers if not each.is_heard)
    if stuck is None and waiting is not None and not moving:
        quiet = [each for each in workers if each.waits_for is None and each.stuck_s]
        stuck = _longest(quiet) or _longest(each for each in waits if each.waits_for != waiting.waits_for)
    if stuck is None:
        return None
    return {
        "waiting_worker_id": None if waiting is None else waiting.worker_id,
        "waits_for": None if waiting is None else waiting.waits_for,
        "waited_s": None if waiting is None else waiting.stuck_s,
        "worker_id": stuck.worker_id,
        "doing": stuck.doing or "recording nothing",
        "stuck_s": stuck.stuck_s,
        "moving_workers": moving,
    }


def _longest(workers: Iterable[_Worker]) -> _Worker | None:
    return max(workers, key=lambda each: each.stuck_s, default=None)


def _worker(worker_id: str, rows: list[dict[str, Any]], now_ns: int) -> _Worker:
    """rows: a row per open phase, the one that began first in front; one without a phase if there is none."""
    silent_s = (now_ns - rows[0]["heard_ns"]) / 1e9
    if silent_s >= SILENT_S:
        return _Worker(worker_id, "silent", silent_s, None, is_heard=False, moves=False)
    ages = [(row, row["age_ns"] / 1e9 + silent_s) for row in rows if row["doing"] is not None]
    stuck = [(row, age_s) for row, age_s in ages if age_s >= _limit_s(row)]
    if stuck:
        # What it entered last is inside what it entered before.
        row, age_s = stuck[-1]
        reason = _REASONS.get(row["reason"], row["reason"] or "something")
        doing = _DOING.get(row["doing"], "busy with something").format(version=row["version"], reason=reason)
        waits_for = reason if row["doing"] == "wait" and row["reason"] != "environment" else None
        return _Worker(worker_id, doing, age_s, waits_for, is_heard=True, moves=False)
    last_ns = rows[0]["last_row_ns"]
    quiet_s = 0.0 if last_ns is None else (now_ns - last_ns) / 1e9
    # Of a worker that was not heard lately, nobody knows what it recorded since.
    is_quiet = not ages and (last_ns is None or quiet_s - silent_s >= QUIET_S)
    return _Worker(worker_id, None, quiet_s, None, is_heard=True, moves=not is_quiet)


def _limit_s(row: Mapping[str, Any]) -> float:
    """Return the seconds that an open phase may last."""
    if row["longest_ns"] is not None:
        return BEYOND_LONGEST_RATIO * row["longest_ns"] / 1e9 + BEYOND_LONGEST_S
    return FIRST_WAIT_S if row["doing"] in _WAITS else FIRST_WORK_S


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None if no worker was stuck when the run was last heard."""
    phases = evidence.answers["open_phases"]
    now_ns = phases["heard_ns"].max()
    found = stall_of(phases, now_ns) if isinstance(now_ns, int) else None
    if found is None or not isinstance(now_ns, int):
        return None
    longest_s = max(float(found[name] or 0.0) for name in ("waited_s", "stuck_s"))
    return Finding(
        rule="stalled",
        severity="critical",
        cost_gpu_s=None,
        evidence=found,
        start_ns=now_ns - round(longest_s * 1e9),
        end_ns=now_ns,
    )


RULE = FindingRule(
    name="stalled",
    title="A worker is stuck",
    sentences=(
        "{waiting_worker_id} has waited {waited_s} for {waits_for}; {worker_id} has been {doing} for {stuck_s}. "
        "Other workers that move: {moving_workers}.",
        "{worker_id} has been {doing} for {stuck_s}. Other workers that move: {moving_workers}.",
    ),
    remedy="Look at the stack of the worker that is stuck, for example with `py-spy dump --pid`: its file under "
    "workers/ names its pid and host. If it is silent, look at the end of its log, and whether its disk is full.",
    find=find,
)
