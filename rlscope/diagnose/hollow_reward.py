"""The reward rises while finished answers earn less.

Symptom: the mean reward of all samples goes up, and that of the responses that finished goes down.
Evidence: both means over the first and over the last five steps, and the share of truncated samples in the last five.
Threshold: both means change by more than chance makes them in 1 of 100 runs: 3.36 standard errors of five steps each.
Remedy: the reward then pays for something other than answers, such as length. Read a few truncated responses.
Limits: only recorded samples tell which responses finished; a log of step metrics does not.
Cost: none is given, because the samples are trained like others.
"""

from rlscope.analysis.result import Finding
from rlscope.diagnose.evidence import Evidence, FindingRule, ends_of


def find(evidence: Evidence) -> Finding | None:
    """Return the finding, or None unless both rewards clearly move apart."""
    cut = evidence.answers["truncation_by_step"]
    every = ends_of(evidence.answers["training_steps"], "reward_mean")
    finished, shares = ends_of(cut, "finished_reward_mean"), ends_of(cut, "truncated_ratio")
    if every is None or finished is None or shares is None:
        return None
    if every.clear_change("reward_mean") <= 0.0 or finished.clear_change("finished_reward_mean") >= 0.0:
        return None
    before, after = every.means("reward_mean")
    finished_before, finished_after = finished.means("finished_reward_mean")
    return evidence.finding(
        "hollow_reward",
        severity="critical",
        facts={
            "reward_before": before,
            "reward_after": after,
            "finished_reward_before": finished_before,
            "finished_reward_after": finished_after,
            "truncated_ratio": shares.means("truncated_ratio")[1],
        },
    )


RULE = FindingRule(
    title="Reward rises without answers",
    sentences=(
        "The mean reward rose from {reward_before} in the first five steps to {reward_after} in the last five, while "
        "that of responses that finished fell from {finished_reward_before} to {finished_reward_after}. "
        "{truncated_ratio} of the last samples were truncated.",
    ),
    remedy="Read a few of the truncated responses: the reward pays for something other than finished answers.",
    find=find,
)
