import pickle
import time
from collections.abc import Iterator
from functools import partial

import pytest
from rlscope_otel.faults import Faults
from rlscope_otel.integrations.seams import Call, Seams, Watch


class Host:
    def __init__(self) -> None:
        self.counted: list[int] = []

    def add(self, left: int, right: int) -> int:
        return left + right

    def count(self, end: int) -> Iterator[int]:
        for number in range(end):
            self.counted.append(number)
            yield number

    @classmethod
    def made(cls) -> None: ...


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def seams(faults: Faults) -> Iterator[Seams]:
    held = Seams(faults, time.time_ns)
    yield held
    held.close()


def test_the_items_of_a_generator_are_seen_one_by_one(seams):
    seen: list[object] = []

    def each(call: Call, item: object) -> None:
        seen.append(item)

    seams.watch(Host, "count", Watch(each=each, after=lambda call: seen.append("end")))
    assert list(Host().count(2)) == [0, 1]
    assert seen == [0, 1, "end"]
    host = Host()
    cut_off = host.count(2)
    next(cut_off)
    cut_off.close()
    assert seen == [0, 1, "end", 0, "end"]
    # The host makes no item before its caller asks for it.
    assert host.counted == [0]


def fails(what: str, call: Call) -> None:
    raise RuntimeError(what)


def test_a_watcher_that_fails_is_counted_by_its_name_also_if_an_argument_is_bound_to_it(seams, faults):
    seams.watch(Host, "add", Watch(partial(fails, "ours"), after=lambda call: fails("too", call)))
    assert [Host().add(1, 2) for _ in range(2)] == [3, 3]
    name = "test_a_watcher_that_fails_is_counted_by_its_name_also_if_an_argument_is_bound_to_it.<locals>.<lambda>"
    assert faults.counts == {"watcher fails": 2, f"watcher {name}": 2}


def test_a_function_that_the_host_lacks_or_that_cannot_be_watched_is_counted_and_less_is_recorded(
    seams, faults, caplog
):
    assert seams.watch(Host, "add", Watch())
    assert not seams.watch(Host, "renamed", Watch())
    assert not seams.watch(Host, "made", Watch())
    assert set(faults.counts) == {"seam renamed", "seam made"}
    assert "has no function renamed; less detail is recorded" in caplog.text


def test_what_goes_to_another_process_by_value_takes_its_watchers_along_and_gives_nothing_back(faults):
    held = Seams(faults, time.time_ns)
    held.watch(Host, "add", Watch())
    watched = Host.add
    pickle.loads(pickle.dumps(held)).close()
    assert Host.add is watched
    held.close()
    assert Host.add is not watched
