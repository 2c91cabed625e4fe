"""How an engine's labels become the trace's versions."""

import pytest
from rlscope_otel.integrations.versions import VersionNames


@pytest.mark.parametrize(
    ("labels", "ordinals"),
    [
        ((None, "", "default", "0", "3", 12), [0, 0, 0, 0, 3, 12]),
        # Others are numbered in the order in which they are first seen, from the latest number on.
        (("step-8", "step-16", "step-8", "step-24"), [1, 2, 1, 3]),
        (("4", "emergency", "other"), [4, 5, 6]),
    ],
)
def test_a_label_that_is_a_whole_number_is_the_ordinal(labels, ordinals):
    names = VersionNames()
    assert [names.applied(label) for label in labels] == ordinals
    assert names.latest == max(ordinals)
