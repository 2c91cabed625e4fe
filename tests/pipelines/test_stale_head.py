"""The fault that raises nothing, on the real pipeline: samplers that keep their first output head are found out."""

import pytest

from tests.pipelines.pipeline_process import run

pytestmark = [pytest.mark.pipelines, pytest.mark.usefixtures("no_model")]

# A first step of more than a thousand tokens, which tells the noise of version 0, and five versions after it.
LONG_ENOUGH = (
    *("--batch", "128", "--slots", "128", "--queue-capacity-samples", "128"),
    *("--response-cap", "64", "--steps", "12"),
)


def test_samplers_that_never_take_the_output_head_over_are_found(tmp_path):
    flags = ("--synchronous", "--learning-rate", "0.002", "--stale-head")
    analysis = run(tmp_path, *LONG_ENOUGH, *flags).analysis
    found = {finding.rule: finding for finding in analysis.findings}["weights_not_applied"]
    assert found.severity == "critical"
    assert found.evidence["noise_gap"] < 1e-9
    assert found.evidence["early_gap"] < found.evidence["late_gap"]


def test_tokens_on_old_context_and_steps_between_publications_do_not_look_like_old_weights(tmp_path):
    flags = ("--slow-sampler", "2", "--steps", "30", "--max-in-flight-samples", "128", "--publish-every", "2")
    analysis = run(tmp_path, *LONG_ENOUGH, *flags).analysis
    assert "weights_not_applied" not in {finding.rule for finding in analysis.findings}
    assert max(analysis.answers["fresh_gap"]["gap"]) < 1e-9
    aged = analysis.answers["version_moments"].filter(staleness=0)
    assert aged["ratio_variance"][0] > 1e-6
