"""Lines of a log: where they end, what Ray puts around them, and which time their stamps mean."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlscope.errors import ImportFileError
from rlscope.importers import lines
from rlscope.importers.lines import LogFile, clean, safe_worker_id
from rlscope.importers.log_clock import open_clock
from rlscope.importers.target import NO_OPTIONS, ImportOptions, ImportTarget

NS = 1_000_000_000
STAMPED = re.compile(r"^(?P<ts>\S+(?: [\d:.,]+)?) ")


def epoch_ns(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()) * NS


NEW_YEAR_NS, HOUR_NS = epoch_ns(2026, 1, 1), 3600 * NS


def written(tmp_path: Path, *stamps: str, changed_ns: int | None = None) -> Path:
    path = tmp_path / "run.log"
    path.write_text("".join(f"{stamp} x\n" for stamp in stamps))
    if changed_ns is not None:
        os.utime(path, ns=(changed_ns, changed_ns))
    return path


def target_of(
    tmp_path: Path, run_ns: tuple[int, int] | None = None, options: ImportOptions = NO_OPTIONS
) -> ImportTarget:
    target = ImportTarget(tmp_path / "run", "run", options, relative_origin_ns=0)
    if run_ns is not None:
        target.extend_worker("trainer", *run_ns)
    return target


def times_ns(path: Path, target: ImportTarget) -> list[int | None]:
    clock = open_clock(path, STAMPED, target)
    assert clock is not None
    return [clock.time_ns(match["ts"]) for line in LogFile(path) if (match := STAMPED.match(line.text))]


@pytest.mark.parametrize("chunk_bytes", range(1, 12))
def test_lines_are_the_same_wherever_a_block_of_the_file_ends(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.log"
    path.write_bytes("é one\r\ntwo\n\n10%\r20%\rlast".encode())
    monkeypatch.setattr(lines, "_CHUNK_BYTES", chunk_bytes)
    log = LogFile(path)
    assert [line.text for line in log] == ["é one", "two", "10%", "20%", "last"]
    assert (log.tally.lines, log.tally.bad_lines, log.tally.bytes) == (5, 0, 25)


@pytest.mark.parametrize(("length", "bad"), [(100, 0), (101, 1), (5_000, 1)])
def test_a_line_longer_than_the_longest_is_bad_and_the_next_is_not(
    length: int, bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"a\n" + b"x" * length + b"\nb\n")
    monkeypatch.setattr(lines, "_CHUNK_BYTES", 64)
    log = LogFile(path, longest_bytes=100)
    assert [len(line.text) for line in log] == [1, *([] if bad else [length]), 1]
    assert (log.tally.lines, log.tally.bad_lines) == (3, bad)


STAMP = "2026-03-04 05:06:07 "


def part(columns: int) -> str:
    """The first part of a line that fills so many columns."""
    return STAMP + "x" * (columns - len(STAMP))


@pytest.mark.parametrize(
    ("columns", "wrapped", "others", "is_joined"),
    [(60, 3, 0, True), (59, 3, 0, False), (60, 2, 0, False), (60, 3, 3, True), (60, 3, 4, False)],
)
def test_a_log_is_wrapped_if_three_parts_and_half_of_the_lines_without_a_beginning_follow_its_widest_lines(
    tmp_path: Path, columns: int, wrapped: int, others: int, is_joined: bool
) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{part(columns)}\nend\n" * wrapped + f"{STAMP}begins\nother\n" * others)
    lines_read = [line.text for line in LogFile(path)]
    assert lines_read[:2] == ([f"{part(columns)}end"] * 2 if is_joined else [part(columns), "end"])


@pytest.mark.parametrize(
    ("before", "line", "joined"),
    [
        (part(60), "end", f"{part(60)}end"),
        # Up to eight spaces may be missing where it was cut.
        (part(52), "end", f"{part(52)}{8 * ' '}end"),
        (part(51), "end", None),
        # What a collector would print before a line can be a part too.
        (part(60), "12: end", f"{part(60)}12: end"),
        (part(60), "(main_task pid=7) end", None),
        (part(60), "INFO 03-04 begins", None),
        (part(60), "step:1 - a:1", None),
        (part(60), " 50%|#####     | 1/2", None),
        # The lines of a framed table are equally long.
        (part(60), "\u2502 step=1.5 \u2502", None),
        (part(60), "| step=1.5 |", None),
        # Lines of one kind begin with the same three characters.
        (part(60), "202 is no year", None),
        (part(60), "20 is none", f"{part(60)}20 is none"),
    ],
)
def test_a_part_of_a_wrapped_line_has_no_beginning_and_follows_a_full_part(
    tmp_path: Path, before: str, line: str, joined: str | None
) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"{part(60)}\nend\n" * 3 + f"{before}\n{line}\n")
    read = [each.text for each in LogFile(path)][3:]
    assert read == ([joined] if joined else [before, clean(line).text])


def test_names_become_worker_ids() -> None:
    assert safe_worker_id("http://10.0.0.1:15000") == "http-10.0.0.1-15000"
    assert safe_worker_id("//") == "worker"


def test_a_stamp_with_a_zone_needs_no_help(tmp_path: Path) -> None:
    path = written(tmp_path, "2026-03-22T01:00:00.250+02:00", "2026-03-22T01:00:01.250+02:00")
    target = target_of(tmp_path)
    assert times_ns(path, target)[0] == epoch_ns(2026, 3, 21, 23) + 250_000_000
    assert target.clock == "wall"


@pytest.mark.parametrize(
    ("stamps", "changed_ns", "times"),
    [
        (("12-31 23:59:59", "01-01 00:00:01"), NEW_YEAR_NS + 3 * HOUR_NS, [NEW_YEAR_NS - NS, NEW_YEAR_NS + NS]),
        # Written late in the year, copied early in the next one.
        (("11-30 10:00:00",) * 2, epoch_ns(2026, 2, 1), [epoch_ns(2025, 11, 30, 10)] * 2),
    ],
)
def test_the_year_of_a_log_is_that_of_its_file_and_goes_on_at_new_year(
    tmp_path: Path, stamps: tuple[str, ...], changed_ns: int, times: list[int]
) -> None:
    assert times_ns(written(tmp_path, *stamps, changed_ns=changed_ns), target_of(tmp_path)) == times


@pytest.mark.parametrize(("offset", "hour"), [(0, 12), (2 * 3600, 10), (-int(3.5 * 3600), 15)])
def test_an_offset_that_is_given_is_taken(tmp_path: Path, offset: int, hour: int) -> None:
    path = written(tmp_path, "2026-03-22 12:00:00", "2026-03-22 12:00:01")
    (first, _) = times_ns(path, target_of(tmp_path, options=ImportOptions(utc_offset_s=offset)))
    assert first == epoch_ns(2026, 3, 22, hour, 30 if offset < 0 else 0)


@pytest.mark.parametrize("year", ["2026-", ""])
def test_a_log_that_joins_a_run_is_brought_into_its_year_and_by_quarter_hours_into_it(
    tmp_path: Path, year: str
) -> None:
    start_ns = epoch_ns(2026, 3, 22, 6, 15)
    stamps = f"{year}03-22 12:00:05", f"{year}03-22 12:00:55"
    path = written(tmp_path, *stamps, changed_ns=epoch_ns(2028, 1, 1))
    (first, last) = times_ns(path, target_of(tmp_path, (start_ns, start_ns + 60 * NS)))
    assert first == start_ns + 5 * NS
    assert last == start_ns + 55 * NS


def test_a_zone_that_the_run_leaves_open_is_taken_as_utc_and_said(tmp_path: Path) -> None:
    start_ns = epoch_ns(2026, 3, 22)
    path = written(tmp_path, "2026-03-22 12:00:05", "2026-03-22 12:00:55")
    target = target_of(tmp_path, (start_ns, start_ns + 24 * 3600 * NS))
    assert times_ns(path, target)[0] == epoch_ns(2026, 3, 22, 12, 0, 5)
    target.add_worker("trainer", "trainer", gpu_count=1)
    assert any("--utc-offset" in note for note in target.finish("verl").notes)


def test_a_log_of_another_day_than_the_run_is_an_error_that_names_the_flag(tmp_path: Path) -> None:
    start_ns = epoch_ns(2026, 3, 22)
    path = written(tmp_path, "2026-03-25 12:00:05", "2026-03-25 12:00:55")
    with pytest.raises(ImportFileError, match=r"no time zone puts into the run; .* --utc-offset"):
        times_ns(path, target_of(tmp_path, (start_ns, start_ns + 60 * NS)))


def test_a_log_that_joins_steps_without_times_is_laid_from_their_start(tmp_path: Path) -> None:
    path = written(tmp_path, "2026-03-25 12:00:05", "2026-03-25 12:00:55")
    target = target_of(tmp_path, (0, 60 * NS))
    target.clock = "relative"
    assert times_ns(path, target) == [0, 50 * NS]
    target.add_worker("trainer", "trainer", gpu_count=1)
    told = "run.log and the run's steps share no clock. They are aligned at their starts"
    assert any(note.startswith(told) for note in target.finish("verl").notes)


def test_text_without_a_stamp_has_no_clock(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("nothing here\n")
    assert open_clock(path, re.compile(r"^(?P<ts>\d\d:\d\d:\d\d) "), target_of(tmp_path)) is None


def test_the_last_stamp_is_found_behind_a_long_end_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_CHUNK_BYTES", 32)
    path = tmp_path / "run.log"
    path.write_text("12-31 23:59:59 x\n01-01 00:00:01 x\n" + "no time in this line\n" * 20)
    os.utime(path, ns=(epoch_ns(2026, 1, 1, 3), epoch_ns(2026, 1, 1, 3)))
    clock = open_clock(path, re.compile(r"^(?P<ts>\d\d-\d\d [\d:]+) x"), target_of(tmp_path))
    assert clock is not None
    assert clock.time_ns("12-31 23:59:59") == epoch_ns(2025, 12, 31, 23, 59, 59)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("node-1: a\nnode-2: b\n", ["a", "b"]),
        ("node-1: a\nb\n", ["node-1: a", "b"]),
        ("kl-loss: 0.5\nstep-time: 2\n", ["kl-loss: 0.5", "step-time: 2"]),
        ("pod-1 vllm a\npod-2 ray-head b\n", ["a", "b"]),
        ("re-run it\nby hand\n", ["re-run it", "by hand"]),
    ],
)
def test_a_name_before_a_line_is_that_of_its_host_if_almost_all_lines_have_one(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    (tmp_path / "run.log").write_text(text)
    assert [line.text for line in LogFile(tmp_path / "run.log")] == lines
