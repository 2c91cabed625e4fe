"""An event in words: what changed, by how much, and what explains it."""

import pytest

from rlscope.analysis.shifts import RunEvent, Shift
from rlscope.reports.text.shifts import event_sentence

S = 10**9


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            RunEvent(41, 300 * S, "lengths", (), (Shift("response_tokens", 210.0, 390.0), Shift("step_s", 10.0, 15.0))),
            "Step 41, after 5 min: mean response length rose from 210 to 390 tokens (+85.7%) and median step time rose "
            "from 10 to 15 s (+50.0%). Longer responses make steps longer.",
        ),
        (
            RunEvent(41, 300 * S, "lengths", (), (Shift("response_tokens", 390.0, 210.0),)),
            "Step 41, after 5 min: mean response length fell from 390 to 210 tokens (−46.2%).",
        ),
        (
            RunEvent(7, 30 * S, "engines", ("sampler-3",), (Shift("trained_tokens_per_s", 100.0, 80.0),)),
            "Step 7, after 30 s: throughput fell from 100 to 80 tokens/s (−20.0%). sampler-3 started or ended then.",
        ),
        (
            RunEvent(7, 30 * S, "weight_updates", (), (Shift("step_s", 0.5, 1.0),)),
            "Step 7, after 30 s: median step time rose from 500 ms to 1 s (+100%). "
            "Most of the change is in weight updates.",
        ),
        (
            RunEvent(7, 30 * S, None, (), (Shift("reward", -0.1, 0.4),)),
            "Step 7, after 30 s: mean reward rose from −0.1 to 0.4. Nothing recorded explains it.",
        ),
    ],
)
def test_an_event_in_words(event: RunEvent, said: str) -> None:
    assert event_sentence(event, 0) == said
