"""Writes a finding as text: its title, its evidence as a sentence, its remedy. The texts are those of its rule."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import EvidenceValue, Finding
from rlscope.diagnose import RULES
from rlscope.diagnose.evidence import FindingRule
from rlscope.reports.text.states import state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlscope.model.forecast.actions import Action

_RULES: Final = {rule.name: rule for rule in RULES}


class _Knobs(NamedTuple):
    """Settings of a framework that its remedies are about; None: not known."""

    running: str | None
    """Requests that an engine runs at once."""
    ahead: str | None
    """Lead of the samplers over training."""
    sampler_gpus: str | None
    publish_every: str | None = None
    """Interval between publications of weights."""
    checkpoints: str | None = None
    """Interval between checkpoints."""
    evaluation: str | None = None
    """Interval between evaluations."""


_KNOBS: Final[Mapping[str, _Knobs]] = {
    "verl": _Knobs(
        "actor_rollout_ref.rollout.max_num_seqs",
        "async_training.staleness_threshold",
        "rollout.n_gpus_per_node",
        "async_training.trigger_parameter_sync_step, or trainer.v1.separate_async.parameter_sync_step",
        checkpoints="trainer.save_freq",
        evaluation="trainer.test_freq",
    ),
    "trl": _Knobs(
        "--max-num-seqs of the vLLM server",
        "max_staleness and max_inflight_tasks",
        None,
        "weight_sync_steps",
        checkpoints="save_steps",
        evaluation="eval_steps",
    ),
    "prime-rl": _Knobs(
        "inference.vllm.max_num_seqs",
        "orchestrator.max_off_policy_steps and orchestrator.concurrency.max_inflight",
        "deployment.num_infer_gpus",
        checkpoints="ckpt.interval",
    ),
    "skyrl": _Knobs(
        "generator.inference_engine.max_num_seqs",
        "trainer.fully_async.max_staleness_steps and trainer.fully_async.num_parallel_generation_workers",
        "generator.inference_engine.num_engines",
        checkpoints="trainer.ckpt_interval",
        evaluation="trainer.eval_interval",
    ),
    "nemo-rl": _Knobs(
        "policy.generation.vllm_kwargs.max_num_seqs",
        "grpo.async_grpo.max_trajectory_age_steps",
        "policy.generation.colocated.resources.gpus_per_node",
        checkpoints="checkpointing.save_period",
        evaluation="grpo.val_period",
    ),
    "openrlhf": _Knobs(
        None,
        "--train.async_queue_size",
        "--vllm.num_engines",
        checkpoints="--ckpt.save_steps",
        evaluation="--eval.steps",
    ),
    "open-instruct": _Knobs(
        None, "--async_steps", "--vllm_num_engines", checkpoints="--save_freq", evaluation="--local_eval_every"
    ),
    "areal": _Knobs(
        "sglang.max_running_requests or vllm.max_num_seqs",
        "rollout.max_head_offpolicyness and rollout.max_concurrent_rollouts",
        None,
        checkpoints="saver.freq_steps",
        evaluation="evaluator.freq_steps",
    ),
    "roll": _Knobs(
        None, "async_generation_ratio", "actor_infer.device_mapping", checkpoints="save_steps", evaluation="eval_steps"
    ),
    "pipelinerl": _Knobs(
        "actor.llm_max_rollouts",
        "finetune.max_lag, in samples",
        "world.actor_fraction",
        "finetune.weight_update_interval, in samples",
        checkpoints="finetune.save_checkpoint_steps",
        evaluation="eval_every_n_versions",
    ),
    "slime": _Knobs(
        "--sglang-server-concurrency",
        None,
        "--rollout-num-gpus",
        "--update-weights-interval",
        checkpoints="--save-interval",
        evaluation="--eval-interval",
    ),
    "miles": _Knobs(
        "--sglang-server-concurrency",
        "--max-weight-staleness",
        "--rollout-num-gpus",
        "--update-weights-interval",
        checkpoints="--save-interval",
        evaluation="--eval-interval",
    ),
}
"""By what the name of the framework begins with; read in the sources that docs/importers.md names."""


WITHOUT_TURNS: Final = frozenset({"starved_trainer", "lockstep", "overproduction"})
"""Findings about one side that waits for the other, or makes more than it can take: colocated GPUs have no sides."""


def title(finding: Finding) -> str:
    """The finding's title."""
    rule = _RULES.get(finding.rule)
    if finding.rule == "overproduction" and not finding.evidence.get("backpressure_gpu_s"):
        return "Dropped samples"
    return rule.title if rule else finding.rule.replace("_", " ").capitalize()


def sentence(finding: Finding) -> str:
    """The evidence as a sentence; as a list if part of it is missing or the rule is unknown."""
    rule = _RULES.get(finding.rule)
    written = {name: _write(name, value) for name, value in finding.evidence.items() if value is not None}
    if rule is not None and rule.counts:
        found = [said.format(written[name]) for name, said in rule.counts.items() if finding.evidence.get(name)]
        return " ".join(found)
    zero = {name for name in rule.silent_at_zero if not finding.evidence.get(name)} if rule else set[str]()
    told = {name: text for name, text in written.items() if name not in zero}
    for pattern in rule.sentences if rule else ():
        try:
            return pattern.format_map(told)
        except KeyError:
            continue
    return "; ".join(f"{_noun(name)}: {text}" for name, text in written.items()) or "No evidence recorded."


def remedy(finding: Finding, ranked: "Sequence[Action]", framework: object = None) -> str:
    """Return the remedy; ranked: the ranked actions. No remedy contradicts the first of them.

    framework: of the run's config; without an action to point to, its own settings are named.
    """
    rule = _RULES.get(finding.rule)
    if rule is None:
        return "Check the evidence; there is no standard remedy."
    own = " ".join(filter(None, (rule.remedy, _settings_sentence(rule, framework), rule.besides)))
    if not ranked:
        return own
    # Who has an action has the model, which `check` does without.
    from rlscope.reports.text import actions

    aim = actions.direction_of(ranked[0])
    if aim is not None and rule.towards in actions.OPPOSITES[aim]:
        return f"First {_lower(actions.imperative(ranked[0]))}; then look again."
    if ranked[0].cause == "weight_updates" and rule.name == "starved_trainer":
        # Engines make no samples while they take weights: cheaper or rarer updates shorten these waits too.
        return f"First {_lower(actions.imperative(ranked[0]))}; then look again."
    against = [number for number, each in enumerate(ranked, 1) if _addresses(each, rule)]
    if rule.keeps_remedy or not against:
        return own
    place = "The first action" if against[0] == 1 else f"Action {fmt.count(against[0])}"
    return f"{place} addresses this. {actions.imperative(ranked[against[0] - 1])}. {rule.besides}".rstrip()


def _addresses(action: "Action", rule: FindingRule) -> bool:
    """Whether the action is a remedy of the finding."""
    from rlscope.reports.text import actions

    if rule.towards is None:
        return action.what == rule.action
    if action.what == "colocated":
        return rule.name in WITHOUT_TURNS
    return actions.direction_of(action) == rule.towards


def _settings_sentence(rule: FindingRule, framework: object) -> str:
    """Return the settings of the framework that the remedy is about; empty if unknown."""
    name = str(framework or "").lower()
    found = next((start for start in _KNOBS if name.startswith(start)), None)
    if found is None:
        return ""
    known = _KNOBS[found]
    by_rule: Mapping[str, Mapping[str, str | None]] = {
        "starved_trainer": {
            "requests per engine": known.running,
            "how far samplers run ahead": known.ahead,
            "sampler GPUs": known.sampler_gpus,
        },
        "weight_update_cost": {"how often weights are published": known.publish_every},
        "checkpoint_cost": {"how often it saves": known.checkpoints, "how often it evaluates": known.evaluation},
    }
    parts = by_rule.get(rule.name, {})
    words = "; ".join(f"{setting} ({what})" for what, setting in parts.items() if setting is not None)
    return f"In {found}: {words}." if words else ""


def _lower(words: str) -> str:
    return words[0].lower() + words[1:]


def _write(name: str, value: EvidenceValue) -> str:
    return state_of(value).label if name == "state" and isinstance(value, str) else fmt.quantity(name, value)


def _noun(name: str) -> str:
    for suffix in ("_gpu_s", "_tokens_per_s", "_per_s", "_ratio", "_versions", "_tokens", "_bytes", "_s"):
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " ")
    return name.replace("_", " ")
