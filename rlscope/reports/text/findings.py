"""What each finding is called, the sentence its evidence makes, and the remedy. Nothing is judged here."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.analysis.result import EvidenceValue, Finding
from rlscope.reports.text.states import state_of


class RuleWords(NamedTuple):
    """The words of one rule; a sentence names the pieces of evidence that it is made of."""

    title: str
    sentences: tuple[str, ...]
    """The first whose pieces of evidence are all there is taken."""
    remedy: str


RULE_WORDS: Final[Mapping[str, RuleWords]] = {
    "weights_not_applied": RuleWords(
        "Weights not applied",
        (
            "Where trainer and samplers should have the same weights, they do not: over {fresh_tokens} in "
            "{seen_versions} the mean of (w - 1)^2 is {gap}, in the first step it was {noise_gap}; it went from "
            "{early_gap} in the first half to {late_gap} in the last.",
            "Where trainer and samplers should have the same weights, they do not: over {fresh_tokens} in "
            "{seen_versions} the mean of (w - 1)^2 is {gap}; it went from {early_gap} in the first half to {late_gap} "
            "in the last.",
        ),
        "Send every tensor at an update, the tied ones too: with tied embeddings take state_dict() in place of "
        "named_parameters(), so that the output head is among them. Then compare log-probabilities, or checksums of "
        "each tensor, on both sides after an update.",
    ),
    "starved_trainer": RuleWords(
        "Starved trainer",
        (
            "Trainers waited {waiting_gpu_s} for samples, {waiting_share_ratio} of their GPU time; the longest single "
            "wait took {longest_wait_s}.",
            "Trainers waited {waiting_gpu_s} for samples, {waiting_share_ratio} of their GPU time.",
        ),
        "Make samples arrive faster: fill the engines, let samplers run further ahead if the staleness cap allows "
        "it, or, where the layout advice agrees, move GPUs from trainers to samplers.",
    ),
    "capped_staleness": RuleWords(
        "Capped staleness",
        (
            "The staleness cap of {max_staleness_versions} held trainers for {trainer_waiting_gpu_s} and samplers for "
            "{sampler_waiting_gpu_s}, {waiting_share_ratio} of all GPU time.",
            "The staleness cap held trainers for {trainer_waiting_gpu_s} and samplers for {sampler_waiting_gpu_s}, "
            "{waiting_share_ratio} of all GPU time.",
        ),
        "Raise the cap if training stays stable with older tokens, or keep it and make tokens age less: a shorter "
        "queue, fewer samples in flight, shorter responses.",
    ),
    "overproduction": RuleWords(
        "Overproduction",
        (
            "{dropped_tokens} were generated and thrown away ({dropped_share_ratio} of all), and samplers stood before "
            "a full queue for {backpressure_gpu_s} ({backpressure_share_ratio} of their GPU time).",
        ),
        "Samplers make more than trainers take: make the training step faster, admit fewer samples so that less of "
        "what is made gets too old, or, where the layout advice agrees, move GPUs from samplers to trainers.",
    ),
    "underfilled_engines": RuleWords(
        "Underfilled engines",
        (
            "Engines ran {running_mean} requests at a time where {running_cap} fit ({fill_ratio} full), over "
            "{decoding_gpu_s} of decoding.",
        ),
        "Give each engine more concurrent requests: raise the admission limit, or run fewer engines. A forward pass "
        "costs nearly the same for a few requests as for many, until the batch is large.",
    ),
    "lockstep": RuleWords(
        "Lockstep",
        (
            "Samplers and trainers worked by turns: samplers stood at the barrier for {barrier_gpu_s} "
            "({barrier_share_ratio} of their GPU time) and trainers waited {waiting_gpu_s} for samples "
            "({waiting_share_ratio}).",
        ),
        "Let samplers run ahead of the trainers by a step, or give both phases the same GPUs. A run that has to stay "
        "on-policy pays this on purpose.",
    ),
    "long_tail": RuleWords(
        "Long tail",
        (
            "Steps waited for the last tenth of their samples, whose tail lasts {tail_s} on average over {steps}: "
            "trainers stood idle for {idle_gpu_s}, {tail_share_ratio} of their GPU time.",
        ),
        "Let the next samples start before the last ones end (asynchronous sampling, or more in flight), cap or split "
        "long responses, or carry the tail over to the next step.",
    ),
    "weight_update_cost": RuleWords(
        "Weight-update cost",
        (
            "{updates} took {publish_gpu_s} of trainers and {apply_gpu_s} of samplers, {share_ratio} of GPU time with "
            "the waits for them; an engine took {apply_mean_s} to apply one.",
            "Weight updates took {publish_gpu_s} of trainers and {apply_gpu_s} of samplers, {share_ratio} of GPU time "
            "with the waits for them.",
        ),
        "Publish less often, transfer while the samplers go on generating, and apply without draining the engines "
        "or recomputing their KV cache.",
    ),
    "straggling_engine": RuleWords(
        "Straggling engine",
        ("Engine {worker_id} makes {tokens_per_s} where the median engine makes {median_tokens_per_s}.",),
        "Look at that engine's host and GPU (clocks, neighbours, memory) and at how requests are routed to it; "
        "replace it if it stays slow.",
    ),
    "data_quality_gaps": RuleWords(
        "Gaps in the data",
        (
            "Skipped: {skipped_files}. Dropped by capture: {dropped_rows}. Without an end: {workers_without_end}. "
            "Unattributed: {unattributed_share_ratio} of GPU time.",
        ),
        "Read every number with these gaps in mind; data quality names each of them. Wrap what is unattributed in an "
        "activity.",
    ),
    "gpu_disagreement": RuleWords(
        "Hooks and GPU disagree",
        ("Hooks report {gpu_s} of {state}, but for {gpu_idle_ratio} of it the GPU ran no kernel.",),
        "That state hides waiting: look for host work, locks or transfers inside it, and give each its span.",
    ),
}


def title(finding: Finding) -> str:
    """What the finding is called."""
    words = RULE_WORDS.get(finding.rule)
    return words.title if words else finding.rule.replace("_", " ").capitalize()


def sentence(finding: Finding) -> str:
    """The evidence as a sentence, or as a list where a piece of it is missing or the rule is not known here."""
    words = RULE_WORDS.get(finding.rule)
    written = {name: _write(name, value) for name, value in finding.evidence.items() if value is not None}
    for pattern in words.sentences if words else ():
        try:
            return pattern.format_map(written)
        except KeyError:
            continue
    return "; ".join(f"{_noun(name)}: {text}" for name, text in written.items()) or "No evidence was given."


def remedy(finding: Finding) -> str:
    """What to try."""
    words = RULE_WORDS.get(finding.rule)
    return words.remedy if words else "Look at the evidence; there is no standard remedy."


def _write(name: str, value: EvidenceValue) -> str:
    return state_of(value).label if name == "state" and isinstance(value, str) else fmt.quantity(name, value)


def _noun(name: str) -> str:
    for suffix in ("_gpu_s", "_tokens_per_s", "_per_s", "_ratio", "_versions", "_tokens", "_bytes", "_s"):
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " ")
    return name.replace("_", " ")
