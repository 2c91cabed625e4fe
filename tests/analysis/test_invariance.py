"""What an analysis says does not depend on what the clocks of its run were set to."""

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from rlscope.pipeline import analyze
from rlscope.reports.documents.analysis import as_document
from tests.kept import TRACES
from tests.model.few_draws import few_draws
from tests.several_hosts import Clock, put_on_hosts, right

TRACE: Final = TRACES / "capped_staleness"
EARLIEST_NS: Final = 10**18
"""September 2001: what is later is a time by a clock."""


def shifted(value: Any, by_ns: int) -> Any:
    """Every time by a clock in a document later by so much."""
    if isinstance(value, dict):
        return {name: shifted(each, by_ns) for name, each in value.items()}
    if isinstance(value, list):
        return [shifted(each, by_ns) for each in value]
    return value + by_ns if isinstance(value, int) and value > EARLIEST_NS else value


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two documents differ; floats that are sums in another order may in their last digits."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [line for name in one for line in differences(one[name], other[name], f"{at}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [line for index in range(len(one)) for line in differences(one[index], other[index], f"{at}[{index}]")]
    if isinstance(one, float) and isinstance(other, float):
        return [] if abs(one - other) <= 1e-9 * max(abs(one), abs(other)) else [f"{at}: {one} and {other}"]
    return [] if one == other else [f"{at}: {one} and {other}"]


def test_clocks_that_are_all_set_later_move_times_and_nothing_else(tmp_path: Path) -> None:
    by_ns = 123_456_789_012_345

    def document(name: str, clock: Clock) -> Any:
        run = put_on_hosts(TRACE, tmp_path / name, defaultdict(lambda: "a"), {"a": clock}, queue_host="a")
        with few_draws():
            return as_document(analyze(run, also_ask=()))

    before, after = document("before", right), document("after", lambda true_ns: true_ns + by_ns)
    assert differences(before, after) != []
    assert differences(shifted(before, by_ns), after) == []
