"""How an engine's labels and request ids become the trace's versions and samples."""

import pytest
from rlscope_otel.integrations.request_ids import RequestName, name_of, request_id_of
from rlscope_otel.integrations.versions import VersionNames


def test_a_label_that_is_a_whole_number_is_the_ordinal():
    names = VersionNames()
    assert [names.ordinal_of(label) for label in (None, "", "default", "0", "3", 12)] == [0, 0, 0, 0, 3, 12]


def test_other_labels_are_numbered_in_the_order_they_are_first_seen():
    names = VersionNames()
    assert [names.applied(label) for label in ("step-8", "step-16", "step-8", "step-24")] == [1, 2, 1, 3]
    assert names.latest == 3


def test_a_named_label_after_numbered_ones_goes_on_from_the_latest():
    names = VersionNames()
    assert [names.applied(label) for label in ("4", "emergency", "other")] == [4, 5, 6]


NAME = RequestName("7/2", "prompt 7", 3)


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (request_id_of(NAME), NAME),
        (f"cmpl-{request_id_of(NAME)}-0", NAME),
        (f"chatcmpl-{request_id_of(NAME)}", NAME),
        (request_id_of(RequestName("17")), RequestName("17", None, 0)),
        ("cmpl-a1b2-0", RequestName("cmpl-a1b2-0", None, 0)),
    ],
    ids=["as sent", "as a completion", "as a chat", "without a group", "a foreign id is a sample of its own"],
)
def test_a_name_comes_back_from_whatever_an_engine_puts_around_it(sent: str, name: RequestName):
    assert name_of(sent) == name
