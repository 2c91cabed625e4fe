"""The states of the ledger for a reader: a label, a meaning, and the same color in every chart.

Blues and greens are work, hollow green is work for samples that were dropped, oranges and reds are waits, purples are
weight updates, greys are housekeeping or unknown. The hues can be told apart with the common kinds of color
blindness, and every chart has its numbers as a table.
"""

from typing import Final

from rlscope import format as fmt
from rlscope.analysis.result import Ledger, RunFacts, UnrecordedTime
from rlscope.reports.blocks import StateStyle

_MOST_NAMED: Final = 3
"""Workers that a sentence names; the JSON has them all."""


STATES: Final = (
    StateStyle("train", "training", "work", "#0b6aa2", "#4ea6dc", "inside a training step"),
    StateStyle("logprobs", "log-probabilities", "work", "#5aa9d6", "#86c5ea", "recomputing log-probabilities"),
    StateStyle("reward", "reward", "work", "#9cc9e3", "#b4d8ec", "computing rewards"),
    StateStyle("decoding", "decoding", "work", "#007a63", "#2fb496", "forward passes that only decode"),
    StateStyle("mixed_passes", "mixed steps (prefill + decode)", "work", "#35a389", "#62cbb1",
               "forward passes that both decode and prefill"),
    StateStyle("prefilling", "prefilling", "work", "#7cc7b1", "#9fdcca", "forward passes that only prefill"),
    StateStyle("generating", "generating", "work", "#57a85a", "#83cc86", "generation recorded without forward passes"),
    StateStyle("other_passes", "other forward passes", "work", "#a9cfc3", "#7d9d94",
               "forward passes without decode or prefill"),
    StateStyle("discarded", "generation for dropped samples", "work", "#9fcdbf", "#4d7f72",
               "the share of generation, by tokens, whose samples were then dropped as stale or abandoned"),
    StateStyle("between_passes", "gaps between engine steps", "housekeeping", "#b5a35a", "#cdbd78",
               "inside an engine step but outside a forward pass: host and scheduler time"),
    StateStyle("waiting_for_samples", "waiting for samples", "wait", "#d55e00", "#f5853f",
               "the trainer had nothing to train on"),
    StateStyle("waiting_for_staleness_cap", "waiting to publish (staleness cap)", "wait", "#a4163f", "#e8658d",
               "the cap delays publishing until older samples finish, so that no token gets staler than it allows"),
    StateStyle("waiting", "waiting", "wait", "#ee9563", "#ffb184", "waiting for another reason, given in brackets"),
    StateStyle("no_requests", "idle", "wait", "#e69f00", "#f3bb47",
               "the engine had no request to run; the reason is in brackets"),
    StateStyle("publishing_weights", "publishing weights", "weights", "#6f4fa3", "#a98bd8",
               "the trainer makes new weights available; sending them is separate only if the run recorded it"),
    StateStyle("transferring_weights", "transferring weights", "weights", "#9279bf", "#c3b0e4",
               "new weights are being sent to the engines"),
    StateStyle("applying_weights", "applying weights", "weights", "#b98bd0", "#d6b3e6", "the engine loads new weights"),
    StateStyle("checkpoint", "checkpoint", "housekeeping", "#4f5f70", "#8496a8", "writing a checkpoint"),
    StateStyle("eval", "evaluation", "housekeeping", "#72869a", "#9fb2c4", "evaluating"),
    StateStyle("startup", "startup", "housekeeping", "#9fb0c0", "#66788a", "starting up"),
    StateStyle("other", "other recorded activity", "housekeeping", "#8a8580", "#a8a29c",
               "an activity that the run recorded under another name"),
    StateStyle("unattributed", "unattributed", "unknown", "#b4b4b4", "#7a7a7a",
               "no activity was recorded at that time"),
)  # fmt: skip

_BY_NAME: Final = {state.name: state for state in STATES}

_REASONS: Final = {
    "samples": "sample queue empty",
    "staleness_cap": "staleness cap",
    "requests": "no requests submitted",
    "backpressure": "sample queue full",
    "barrier": "at a barrier",
    "environment": "environment",
    "weights": "new weights",
}


def state_of(name: str) -> StateStyle:
    """The state of that name; a name that this version does not know becomes an unknown state with that label."""
    unknown = _BY_NAME["unattributed"]
    words = {"label": name.replace("_", " "), "meaning": "a state without a description"}
    return _BY_NAME.get(name) or unknown._replace(name=name, is_known=False, **words)


def state_label(name: str, reason: str | None) -> str:
    """The label of a state, with its reason unless the label already says it."""
    label = state_of(name).label
    if not reason or name.startswith("waiting_for_"):
        return label
    return f"{label} ({_REASONS.get(reason, reason.replace('_', ' '))})"


UNDERFILLED: Final = "lost to small batches"
"""Label of the part of decoding time that the model counts as lost to underfilled batches."""


def order_of(name: str) -> int:
    """Position in a stacked bar: work first, then waits, then the rest."""
    names = tuple(_BY_NAME)
    return names.index(name) if name in _BY_NAME else len(names)


def role_order(role: str) -> tuple[int, str]:
    """Sort key of a role: trainers first."""
    order = ("trainer", "sampler", "colocated", "auxiliary", "controller")
    return (order.index(role) if role in order else len(order), role)


def cap_sentence(ledger: Ledger) -> str:
    """Explain the wait at the staleness cap, as a sentence; empty if no GPU waited for it."""
    wait = state_of("waiting_for_staleness_cap")
    is_there = any(state.state == wait.name and state.gpu_ns > 0 for state in ledger.states)
    return f"{wait.label.capitalize()}: {wait.meaning}." if is_there else ""


def unrecorded_sentence(ledger: Ledger) -> str:
    """Name the workers that the ledger lacks for a part of the run, as a sentence; empty if it lacks none."""
    if not ledger.unrecorded:
        return ""
    named = [_unrecorded(worker) for worker in ledger.unrecorded[:_MOST_NAMED]]
    others = len(ledger.unrecorded) - len(named)
    more = [fmt.counted(others, "other worker")] if others else []
    total = fmt.gpu_time(sum(worker.gpu_s for worker in ledger.unrecorded))
    return f"The total leaves out {total} that were not recorded: {'; '.join([*named, *more])}."


def use_words(run: RunFacts, auxiliary_gpus: int = 0) -> str:
    """GPUs by what they are for: 4 for training, 12 for sampling."""
    uses = {"training": run.trainer_gpus, "sampling": run.sampler_gpus, "both": run.colocated_gpus}
    uses["auxiliary models"] = auxiliary_gpus
    return ", ".join(f"{fmt.count(gpus)} for {use}" for use, gpus in uses.items() if gpus)


def auxiliary_sentence(run: RunFacts) -> str:
    """Say which GPUs the verdict leaves out, as a sentence; empty if the run has no auxiliary GPUs."""
    gpus = fmt.counted(run.auxiliary_gpus, "auxiliary GPU")
    return f"The verdict and the actions leave out the {gpus}." if run.auxiliary_gpus else ""


def _unrecorded(worker: UnrecordedTime) -> str:
    before = f"the first {fmt.duration(worker.before_s)}" if worker.before_s > 0 else ""
    after = f"the last {fmt.duration(worker.after_s)}" if worker.after_s > 0 else ""
    return f"{' and '.join(filter(None, (before, after)))} of worker '{worker.worker_id}'"
