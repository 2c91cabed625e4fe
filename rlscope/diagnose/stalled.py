"""A worker is stuck, and others may wait for it: a run that hangs, or is about to.

Symptom: no step ends any more, GPUs are idle, and nothing raises.
Evidence: at each flush, a worker writes which phase it is in, and since when. The reference for a phase is the longest
one of that kind that a worker of the same role has completed.
Threshold: a worker is stuck once its phase has lasted 1.25 times the reference plus 5 s. Without a reference, it is
stuck after 5 minutes in a wait or a weight update, and after half an hour in start-up, training, evaluation or a
checkpoint, which may take long the first time. A worker is silent if no data came from it for 15 s while data came from
others. It is quiet if it is in no phase and has recorded nothing for 5 s. The worker that holds up the others is, in
this order: one that is stuck in its own work or waits for an environment; a silent one, once another is stuck or a
minute has passed; a trainer that is stuck in an update that needs the engines; a quiet one, if all others are stuck or
a rank of its role waits for the other ranks. If all wait, they wait for each other. While a worker has sent no data for
5 to 15 s, only workers that are stuck in their own work are named. Always critical.
Remedy: look at the stack of the worker that is stuck.
Limits: hooks that record a phase only after it has ended show nothing of it; their workers are quiet. There is no
finding once all trainers have recorded their stop, nor while a worker that others wait for makes progress, however
slowly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal

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
SILENT_S: Final = 15.0
"""Seven missed flushes at the usual interval: a busy disk or processor delays a few of them."""
# Two of them: then what others are stuck in may be a wait for this worker.
_OVERDUE_S: Final = 5.0
# If nobody waits: as long as in the rule worker_silent, and longer than the copy in a store is behind.
_LOST_S: Final = 60.0
# A quiet worker is heard all the time, and counts only where those that need it wait for longer than they ever did.
_QUIET_S: Final = 5.0

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
WAITS: Final = frozenset({"wait", *_UPDATING})
"""Phases that last as long as others load and compile, if nobody has ended one yet."""
_OF_BOTH_SIDES: Final = ("transfer", "weight_update")
_OF_TRAINERS: Final = ("publish", "drain", "resume")
"""Parts of an update in which a trainer asks the engines, or both sides take part: the other one may be at fault."""
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
    role: str
    kind: Literal["moves", "overdue", "silent", "quiet", "works", "updates", "waits"]
    """Whether it was heard lately, and what it is stuck in: its own work, an update that needs others too, a wait."""
    doing: str
    """Words for it."""
    since_s: float
    waits_for: str | None = None
    """Thing of another worker that it waits for, in words; None if it does not wait for one."""


def stall_of(open_phases: pl.DataFrame, now_ns: int) -> Mapping[str, EvidenceValue] | None:
    """Return who is stuck and who waits, as evidence of the finding; None if the run moves.

    open_phases: the answer to the query of that name, in which the rows of a worker follow each other.
    """
    trainers = open_phases.filter(pl.col("role").is_in(TRAINER_ROLES))
    if len(trainers) and trainers["is_over"].all():
        return None
    running = open_phases.filter(~pl.col("is_over")).iter_rows(named=True)
    workers = [_worker(list(rows), now_ns) for _, rows in groupby(running, itemgetter("worker_id"))]
    stuck = _at_fault(workers)
    if stuck is None:
        return None
    waits = [each for each in workers if each.waits_for is not None and each is not stuck]
    waiting = _longest(_beyond_ranks(waits))
    return {
        "waiting_worker_id": None if waiting is None else waiting.worker_id,
        "waits_for": None if waiting is None else waiting.waits_for,
        "waited_s": None if waiting is None else waiting.since_s,
        "worker_id": stuck.worker_id,
        "doing": stuck.doing,
        "stuck_s": stuck.since_s,
        "moving_workers": sum(each.kind == "moves" for each in workers),
    }


def _at_fault(workers: Sequence[_Worker]) -> _Worker | None:
    """Return the worker that holds up the others; None if there is none, or if one that says more may be heard yet."""
    of_kind = {kind: [each for each in workers if each.kind == kind] for kind in {each.kind for each in workers}}
    updates, waits = of_kind.get("updates", []), of_kind.get("waits", [])
    unjoined = {each.role for each in waits if each.waits_for == _REASONS["barrier"]}
    lost = [each for each in of_kind.get("silent", []) if updates or waits or each.since_s >= _LOST_S]
    if stuck := _longest(of_kind.get("works", [])) or _longest(lost):
        return stuck
    if "overdue" in of_kind:
        return None
    if updates:
        return _longest([each for each in updates if each.role in TRAINER_ROLES] or updates)
    waiting, moves = _longest(_beyond_ranks(waits)), "moves" in of_kind
    if waiting is None:
        return None
    quiet = [each for each in of_kind.get("quiet", []) if each.since_s and (each.role in unjoined or not moves)]
    others = _beyond_ranks([each for each in waits if each.waits_for != waiting.waits_for])
    return _longest(quiet) or (None if moves else _longest(others))


def _beyond_ranks(waits: Sequence[_Worker]) -> Sequence[_Worker]:
    """Leave out ranks that wait for other ranks: they show less than what those wait for."""
    return [each for each in waits if each.waits_for != _REASONS["barrier"]] or waits


def _longest(workers: Iterable[_Worker]) -> _Worker | None:
    return max(workers, key=lambda each: each.since_s, default=None)


def _worker(rows: list[dict[str, Any]], now_ns: int) -> _Worker:
    """rows: a row per open phase, the one that began first in front; one without a phase if there is none."""
    worker_id, role, last_ns = rows[0]["worker_id"], rows[0]["role"], rows[0]["last_row_ns"]
    unheard_s = (now_ns - rows[0]["heard_ns"]) / 1e9
    if unheard_s >= SILENT_S:
        return _Worker(worker_id, role, "silent", "silent", unheard_s)
    # What it entered last is inside what it entered before.
    entered = [row for row in rows if row["doing"] is not None]
    stuck = [row for row in entered if row["age_ns"] / 1e9 >= _limit_s(row)]
    if stuck:
        return _stuck(worker_id, role, stuck[-1])
    if unheard_s >= _OVERDUE_S:
        return _Worker(worker_id, role, "overdue", "silent", unheard_s)
    if not entered and (last_ns is None or (rows[0]["heard_ns"] - last_ns) / 1e9 >= _QUIET_S):
        quiet_s = 0.0 if last_ns is None else (now_ns - last_ns) / 1e9
        return _Worker(worker_id, role, "quiet", "recording nothing", quiet_s)
    return _Worker(worker_id, role, "moves", "moving", 0.0)


def _stuck(worker_id: str, role: str, row: Mapping[str, Any]) -> _Worker:
    doing, reason = row["doing"], _REASONS.get(row["reason"], row["reason"] or "something")
    words = _DOING.get(doing, "busy with something").format(version=row["version"], reason=reason)
    if doing in _OF_BOTH_SIDES or (doing in _OF_TRAINERS and role in TRAINER_ROLES):
        return _Worker(worker_id, role, "updates", words, row["age_ns"] / 1e9, "a weight update")
    if doing == "wait" and row["reason"] != "environment":
        return _Worker(worker_id, role, "waits", words, row["age_ns"] / 1e9, reason)
    return _Worker(worker_id, role, "works", words, row["age_ns"] / 1e9)


def _limit_s(row: Mapping[str, Any]) -> float:
    """Return the seconds that an open phase may last."""
    if row["longest_ns"] is not None:
        return BEYOND_LONGEST_RATIO * row["longest_ns"] / 1e9 + BEYOND_LONGEST_S
    return FIRST_WAIT_S if row["doing"] in WAITS else FIRST_WORK_S


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
    title="A worker is stuck",
    sentences=(
        "{waiting_worker_id} has waited {waited_s} for {waits_for}; {worker_id} has been {doing} for {stuck_s}. "
        "Other workers that make progress: {moving_workers}.",
        "{worker_id} has been {doing} for {stuck_s}. Other workers that make progress: {moving_workers}.",
    ),
    remedy="Look at the stack of the worker that is stuck, for example with `py-spy dump --pid`: its file under "
    "workers/ names its pid and host. If it is silent, look at the end of its log, and whether its disk is full.",
    find=find,
)
