"""SGLang's log: pass times where a line settles them, inferred ones elsewhere, placed by stamps of whole seconds."""

import json
import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from rlscope.importers.join import import_run
from rlscope.importers.sglang import SGLANG_LOG
from rlscope.importers.target import ImportOptions
from rlscope.trace.imported import Certainty
from tests.importers.filling import NS, Row, asked, fill, importing

imported = importing("engine-0.log", SGLANG_LOG, utc_offset_s=0)
MIDNIGHT_NS = int(datetime(2026, 3, 22, tzinfo=UTC).timestamp()) * NS


def decode(at_s: float, running: int, tokens: int, per_s: float, more: str = "", ranks: str = " TP0") -> str:
    """A line as SGLang 0.5 prints it, at_s after midnight."""
    stamp = datetime.fromtimestamp(MIDNIGHT_NS // NS + int(at_s), UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"[{stamp}{ranks}] Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.04,{more}"
        f" cuda graph: True, gen throughput (token/s): {per_s:.2f}, #queue-req: 2,\n"
    )


def prefill(at_s: float, new_tokens: int) -> str:
    stamp = datetime.fromtimestamp(MIDNIGHT_NS // NS + int(at_s), UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"[{stamp} TP0] Prefill batch, #new-seq: 1, #new-token: {new_tokens}, #cached-token: 0, token usage: 0.08,"
        " #running-req: 5, #queue-req: 0,\n"
    )


def steady(lines: int, *, running: int = 8, gap_s: float = 0.4, first_s: float = 0.35, passes: int = 40) -> list[str]:
    """An engine whose batch does not change."""
    grown = passes * running
    return [decode(first_s + index * gap_s, running, 10_000 + index * grown, grown / gap_s) for index in range(lines)]


def lengths_s(rows: list[Row]) -> list[float]:
    return [round((row["end_ns"] - row["start_ns"]) / NS, 4) for row in rows]


def test_an_unchanged_batch_gives_the_time_of_its_passes_as_recorded(tmp_path: Path) -> None:
    run = imported(tmp_path, *steady(4))
    rows = run.rows("engine_steps")
    assert [row["busy_ns"] for row in rows] == [400_000_000] * 3
    assert [(row["forward_passes"], row["running"], row["waiting"], row["decode_tokens"]) for row in rows] == [
        (40, 8, 2, 320)
    ] * 3
    assert [row["kv_used_tokens"] for row in rows] == [10_160, 10_480, 10_800]
    assert {row["source"] for row in rows} == {"log"}
    assert run.imported.tables["engine_steps"].certainty is Certainty.RECORDED


def test_rows_lie_end_to_end_and_each_ends_inside_the_second_of_its_stamp(tmp_path: Path) -> None:
    rows = imported(tmp_path, *steady(40)).rows("engine_steps")
    assert all(after["start_ns"] == before["end_ns"] for before, after in pairwise(rows))
    # With 40 lines the one shift that fits is settled to a tenth of a second.
    errors_s = [(row["end_ns"] - MIDNIGHT_NS) / NS - (0.35 + 0.4 * (1 + index)) for index, row in enumerate(rows)]
    assert max(abs(error) for error in errors_s) <= 0.1


def test_time_that_no_shift_fits_is_a_new_stretch_with_the_engine_unseen_between(tmp_path: Path) -> None:
    early = steady(5)
    late = [decode(100.35 + index * 0.4, 8, 50_000 + index * 320, 800.0) for index in range(5)]
    rows = imported(tmp_path, *early, *late).rows("engine_steps")
    gaps_s = [(after["start_ns"] - before["end_ns"]) / NS for before, after in pairwise(rows)]
    assert [gap for gap in gaps_s if gap > 0.0] == [pytest.approx(98.0, abs=1.0)]


def test_a_batch_that_changed_is_taken_as_its_mean_and_its_passes_as_unknown(tmp_path: Path) -> None:
    run = imported(tmp_path, *steady(4), decode(2.0, 4, 9_000, 600.0))
    last = run.rows("engine_steps")[-1]
    assert (last["running"], last["decode_tokens"], last["busy_ns"]) == (6, 240, None)
    assert lengths_s([last]) == [0.4]
    assert run.imported.tables["engine_steps"].certainty is Certainty.INFERRED
    assert any("3 of 4 engine rows have a recorded step time" in note for note in run.imported.notes)


@pytest.mark.parametrize(("grown", "is_recorded"), [(320 + 8, True), (320 + 9, False), (320 - 8, True)])
def test_the_cache_must_have_grown_by_the_tokens_of_the_passes_within_one_a_request(
    tmp_path: Path, grown: int, is_recorded: bool
) -> None:
    *_, last = imported(tmp_path, *steady(4), decode(1.95, 8, 10_960 + grown, 800.0)).rows("engine_steps")
    assert (last["busy_ns"] is not None) is is_recorded


def test_prefills_between_two_lines_take_what_the_passes_leave(tmp_path: Path) -> None:
    # 400 ms of the 600 ms are 40 passes of 10 ms.
    run = imported(tmp_path, *steady(4), prefill(1.8, 500), prefill(1.9, 300), decode(2.15, 8, 11_000, 320 / 0.6))
    *_, filling, decoding = run.rows("engine_steps")
    assert (filling["forward_passes"], filling["prefill_tokens"], filling["decode_tokens"]) == (2, 800, 0)
    assert (decoding["forward_passes"], decoding["prefill_tokens"], decoding["decode_tokens"]) == (40, 0, 320)
    assert lengths_s([filling, decoding]) == [0.2, 0.4]
    assert filling["busy_ns"] is None
    assert decoding["busy_ns"] is None


@pytest.mark.parametrize(
    ("at_s", "length_s"),
    # Up to the first decode line at 3 s, less its passes of 0.4 s; in that second, and beyond five times, the usual.
    [((1, 2), 1.6), ((3, 3), 0.4), ((0, 2), 0.4)],
)
def test_prefills_before_the_first_decode_line_have_a_row(
    tmp_path: Path, at_s: tuple[int, int], length_s: float
) -> None:
    usual = prefill(4.6, 500), decode(5.15, 8, 11_000, 320 / 0.6)
    run = imported(tmp_path, prefill(at_s[0], 500), prefill(at_s[1], 300), *steady(4, first_s=3.35), *usual)
    first, *later = run.rows("engine_steps")
    assert (first["forward_passes"], first["prefill_tokens"], first["decode_tokens"]) == (2, 800, 0)
    assert lengths_s([first]) == [length_s]
    assert sum(row["prefill_tokens"] for row in later) == 500


@pytest.mark.parametrize(("beside_s", "prefill_s"), [(0.5, 0.5), (0.6, 0.1)])
def test_time_beside_the_passes_beyond_five_prefills_was_idle(
    tmp_path: Path, beside_s: float, prefill_s: float
) -> None:
    usual = [line for start in (2.0, 3.0, 4.0) for line in (prefill(start, 500), decode(start + 0.5, 8, 900, 640.0))]
    late = [prefill(6.0, 500), decode(6.5, 8, 900, 320 / (0.4 + beside_s))]
    *_, filling, decoding = imported(tmp_path, *steady(4), *usual, *late).rows("engine_steps")
    assert lengths_s([filling, decoding]) == [prefill_s, 0.4]


@pytest.mark.parametrize(
    ("settings", "passes"),
    [("server_args=ServerArgs(tp_size=2, decode_log_interval=10)\n", 10), ("", 1)],
)
def test_the_passes_of_a_line_are_those_of_the_settings_or_what_the_cache_shows(
    tmp_path: Path, settings: str, passes: int
) -> None:
    rows = imported(tmp_path, settings, *steady(4, passes=passes)).rows("engine_steps")
    assert {row["forward_passes"] for row in rows} == {passes}


@pytest.mark.parametrize(("page", "passes"), [(64, 40), (1, 52)])
def test_a_cache_of_pages_shows_that_no_request_left_but_not_the_passes(tmp_path: Path, page: int, passes: int) -> None:
    lines = [decode(0.5 * index, 1, (passes * index // page + 100) * page, 2.0 * passes) for index in range(20)]
    left = decode(10.5, 1, 20 * page, 2.0 * passes)
    *rows, last = imported(tmp_path, *lines, left).rows("engine_steps")
    assert {(row["forward_passes"], row["busy_ns"]) for row in rows} == {(passes, NS // 2)}
    assert (last["forward_passes"], last["busy_ns"]) == (passes, None)


def test_speculative_decoding_counts_the_tokens_that_were_accepted(tmp_path: Path) -> None:
    """The cache grows by the tokens that were accepted, which tells nothing about the passes."""
    lines = [decode(0.5 * index, 1, 1_000 + 140 * index, 280.0, " accept len: 3.50,") for index in range(3)]
    rows = imported(tmp_path, *lines).rows("engine_steps")
    assert [(row["forward_passes"], row["decode_tokens"], row["busy_ns"]) for row in rows] == [(40, 140, None)] * 2


def test_a_prefill_that_leaves_no_time_beside_the_passes_adds_its_tokens_to_them(tmp_path: Path) -> None:
    """A log of single requests in turn (2026-08): 40 passes may span two of them, and the prefill between takes 0 s."""
    lines = [decode(0.5 * index, 1, 1_000 + 140 * index, 280.0, " accept len: 3.50,") for index in range(4)]
    rows = imported(tmp_path, *lines[:3], prefill(1.25, 300), lines[3]).rows("engine_steps")
    assert [(row["decode_tokens"], row["prefill_tokens"]) for row in rows] == [(140, 0), (140, 0), (140, 300)]
    assert lengths_s(rows) == [0.5] * 3


def test_an_engine_that_only_prefills_has_no_steps_which_is_said(tmp_path: Path) -> None:
    """Where other engines decode (2026-01), its log has no throughput from which times follow."""
    run = imported(tmp_path, *(prefill(index, 8_704) for index in range(9)))
    assert run.rows("engine_steps") == []
    assert "engine-0.log has no two decode lines of an engine, so engine steps are unknown" in run.imported.notes


def test_ranks_that_repeat_an_engine_are_left_out_and_data_parallel_ranks_are_engines(tmp_path: Path) -> None:
    lines = [
        decode(0.4 * index, 8, 1_000 + 320 * index, 800.0, ranks=ranks)
        for index in range(3)
        for ranks in (" DP0 TP0", " DP1 TP1", " TP1", " PP1 TP0")
    ]
    run = imported(tmp_path, *lines)
    assert sorted({row["worker_id"] for row in run.rows("engine_steps")}) == ["engine-0-dp0", "engine-0-dp1"]
    assert run.imported.files[0].bad_lines == 0


@pytest.mark.parametrize(("second_s", "replaced"), [(0, 0), (1, 1)])
def test_an_engine_that_begins_in_the_second_in_which_another_ends_does_not_replace_it(
    tmp_path: Path, second_s: int, replaced: int
) -> None:
    lines = [decode(at_s, 8, 1_000, 800.0, ranks=f" DP{rank} TP0") for rank, at_s in ((0, 0), (1, second_s))]
    run = imported(tmp_path, *lines)
    assert sum("started again on the same GPUs" in note for note in run.imported.notes) == replaced


SERVER = "server_args=ServerArgs(tp_size=16, dp_size=4, max_running_requests=144, enable_dp_attention={})\n"
OWN = "[2026-03-22 00:00:00 DP0 TP0] max_total_num_tokens=9000, max_running_requests=36, context_len=4096\n"


@pytest.mark.parametrize(
    ("head", "gpus", "max_running", "kv_tokens"),
    [
        (SERVER.format(True), 4, 36, None),
        (SERVER.format(True) + OWN, 4, 36, 9_000),
        (SERVER.format(False), 16, 144, None),
        (SERVER.format(False) + OWN, 16, 36, 9_000),
    ],
)
def test_ranks_that_share_attention_share_the_gpus_and_the_limit_of_their_server(
    tmp_path: Path, head: str, gpus: int, max_running: int, kv_tokens: int | None
) -> None:
    lines = [
        decode(0.4 * index, 8, 1_000 + 320 * index, 800.0, ranks=f" DP{rank} TP{4 * rank}")
        for index in range(3)
        for rank in range(4)
    ]
    run = imported(tmp_path, head, *lines)
    documents = [json.loads(path.read_text()) for path in sorted((run.folder / "workers").iterdir())]
    found = [(each["gpu_count"], each["max_running"], each.get("kv_capacity_tokens")) for each in documents]
    assert found == [(gpus, max_running, kv_tokens)] * 4


@pytest.mark.parametrize("learnt", [True, False])
def test_a_silence_before_a_prefill_that_finds_nothing_running_is_no_pass(tmp_path: Path, learnt: bool) -> None:
    """40 passes of 1.25 tokens for each of 8 requests: 400 tokens in 2,000 s, of which the engine ran for 2 at most."""
    accepts = " accept len: 1.25,"
    early = [decode(0.5 * index, 8 - (index % 2) * (not learnt), 400, 800.0, accepts) for index in range(4)]
    filling = prefill(2_000, 500).replace("#running-req: 5", "#running-req: 0")
    run = imported(tmp_path, *early, filling, decode(2_001, 8, 400, 0.2, accepts))
    *_, last = run.rows("engine_steps")
    working_s = sum(lengths_s([row for row in run.rows("engine_steps") if row["start_ns"] > MIDNIGHT_NS + 100 * NS]))
    assert working_s == pytest.approx(2.0)
    idle = [row for row in run.rows("activities") if row["reason"] == "requests"]
    assert [(row["activity"], row["end_ns"]) for row in idle] == [("wait", last["end_ns"] - 2 * NS)]
    assert lengths_s(idle) == [pytest.approx(1_997.5, abs=1.0)]


def test_stamps_without_a_date_take_the_files_and_pass_midnight(tmp_path: Path) -> None:
    lines = [
        f"[{stamp} TP0] Decode batch. #running-req: 8, #token: {1_000 + 320 * index}, token usage: 0.04,"
        " gen throughput (token/s): 320.00, #queue-req: 0\n"
        for index, stamp in enumerate(("23:59:58", "23:59:59", "00:00:00", "00:00:01"))
    ]
    log = tmp_path / "engine-0.log"
    log.write_text("".join(lines))
    os.utime(log, (MIDNIGHT_NS // NS, MIDNIGHT_NS // NS))
    rows = fill(tmp_path / "run", (log, SGLANG_LOG)).rows("engine_steps")
    assert lengths_s(rows) == [1.0] * 3
    assert rows[-1]["end_ns"] > rows[0]["end_ns"]


def test_a_log_with_a_zone_is_fitted_into_a_run_without_dates(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    counts = "Decode batch, #running-req: 8, token usage: 0.04, gen throughput (token/s): 320.00, #queue-req: 0\n"
    log.write_text("".join(f"2026-03-22T00:00:0{second}Z sglang-0 {counts}" for second in range(4)))
    verl = Path(__file__).parent / "fixtures" / "verl" / "console.log"
    import_run(verl, tmp_path / "run", ImportOptions(engine_logs=(log,)))
    between = "SELECT min(end_ns) - (SELECT min(start_ns) FROM train_steps) FROM engine_steps"
    ((between_ns,),) = asked(tmp_path / "run", between)
    assert between_ns is not None and abs(between_ns) < 60 * NS


def test_a_line_whose_numbers_are_none_is_counted(tmp_path: Path) -> None:
    run = imported(tmp_path, *steady(4), decode(2.0, 8, 1, 1.0).replace("#running-req: 8", "#running-req: x"))
    assert run.imported.files[0].bad_lines == 1
