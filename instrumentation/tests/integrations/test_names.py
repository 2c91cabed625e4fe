"""How an engine's labels and request ids become the trace's versions and samples."""

import pytest
from rlscope_otel.integrations.request_ids import RequestName, name_of, request_id_of
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


@pytest.mark.parametrize("around", ["{}", "cmpl-{}-0", "chatcmpl-{}"])
@pytest.mark.parametrize("name", [RequestName("7/2", "prompt 7", 3), RequestName("17", None, 0)])
def test_a_name_comes_back_from_whatever_an_engine_puts_around_it(around, name):
    assert name_of(around.format(request_id_of(name))) == name


def test_a_foreign_id_is_a_sample_of_its_own():
    assert name_of("cmpl-a1b2-0") == RequestName("cmpl-a1b2-0", None, 0)
