"""Pages as served by vLLM 0.32.0 (its own server, on a CPU, after 72 requests) and as rendered by the collector of
SGLang 0.5.23 (its own class, with numbers set by hand), without their help texts and most of vLLM's buckets."""

import os
import re
import socketserver
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from rlscope_otel import Run, start_run
from rlscope_otel.clock import RunClock
from rlscope_otel.integrations import scrape
from rlscope_otel.integrations.engine_readings import Point, Reading, points_of, readings_of

from tests.manual_clock import ManualClock
from tests.serving import serving
from tests.waiting import TIME_LIMIT_S

PAGES = Path(__file__).parent / "pages"
VLLM, SGLANG = (PAGES / name for name in ("vllm-0.32.0.txt", "sglang-0.5.23.txt"))
MS = 1_000_000
KV_CAPACITY_TOKENS = 16_384 * 128


def page_with(path: Path, **values: float) -> str:
    """The recorded page with some series at other values; a name stands for all series of that name."""
    text = path.read_text()
    for name, value in values.items():
        text, changed = re.subn(rf"(?m)^((?:vllm|sglang):{name}(?:{{.*}})?) \S+$", rf"\g<1> {value}", text)
        assert changed, name
    return text


def sglang_page(decode: float = 0, busy: float = 0, idle: float = 0, running: float = 4) -> str:
    text = page_with(
        SGLANG, num_running_reqs=running, num_queue_reqs=0, scheduler_idle_seconds_total=idle, realtime_tokens_total=0
    )
    text = re.sub(r'(?m)^(sglang:realtime_tokens_total.*mode="decode".*) \S+$', rf"\g<1> {decode}", text)
    return re.sub(r'(?m)^(sglang:forward_execution.*category="(\w+)".*) \S+$', lambda m: f"{m[1]} {busy / 2}", text)


class Watched:
    """A scraper on a clock that moves only when told to, and the page that it reads next."""

    def __init__(self, tmp_path: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.page: str | OSError = ""
        self.runs: dict[str, Run] = {}
        self._folder = tmp_path
        self.scraper = scrape.Scraper(self._fetch, self._start, RunClock(clock).now_ns)

    def see(self, page: str | OSError, after_ms: int = 0) -> str | None:
        self.clock.advance(after_ms * MS)
        self.page = page
        return self.scraper.read()

    def _fetch(self) -> str:
        if isinstance(self.page, OSError):
            raise self.page
        return self.page

    def _start(self, engine: str, reading: Reading) -> Run:
        kv_capacity_tokens = reading.kv_capacity_tokens
        self.runs[engine] = start_run(
            self._folder, "sampler", f"e-{engine}", clock=self.clock, kv_capacity_tokens=kv_capacity_tokens
        )
        return self.runs[engine]


@pytest.fixture
def watched(tmp_path: Path, clock: ManualClock) -> Watched:
    return Watched(tmp_path, clock)


def waits(rows) -> list[tuple[object, ...]]:
    return [(row["reason"], row["start_ns"] - MS, row["end_ns"] - MS) for row in rows("activities")]


def test_a_page_of_sglang_gives_its_engine_s_reading_with_its_own_times():
    assert readings_of(points_of(SGLANG.read_text())) == {
        "0": Reading(
            running=16,
            waiting=3,
            decode_tokens=5120,
            prefill_tokens=900,
            busy_s=3.75,
            idle_s=12.5,
            preemptions=2,
            kv_used_tokens=4096,
            kv_capacity_tokens=100_000,
        )
    }


@pytest.mark.parametrize(
    ("series", "running"),
    [
        (('tp_rank="0"} 3', 'tp_rank="1"} 3'), {"0": 3}),
        (('tp_rank="0",pp_rank="0"} 3', 'tp_rank="0",pp_rank="1"} 0'), {"0": 3}),
        (('dp_rank="7",tp_rank="0"} 3',), {"7": 3}),
        (('priority=""} 3', 'priority="1"} 2', 'priority="5"} 1'), {"0": 3}),
        # Ranks that share a tensor-parallel group, each with two ranks of it.
        (
            (
                'dp_rank="0",tp_rank="0"} 3',
                'dp_rank="0",tp_rank="1"} 3',
                'dp_rank="1",tp_rank="10"} 5',
                'dp_rank="1",tp_rank="9"} 4',
            ),
            {"0": 3, "1": 4},
        ),
    ],
)
def test_the_first_rank_of_each_data_parallel_rank_of_sglang_is_an_engine(series, running):
    page = "".join(f"sglang:num_running_reqs{{{each}\n" for each in series)
    assert {engine: reading.running for engine, reading in readings_of(points_of(page)).items()} == running


@pytest.mark.parametrize(
    ("label", "capacity_tokens"),
    [('kv_cache_size_tokens="5000",', 5000), ("", KV_CAPACITY_TOKENS)],
)
def test_the_kv_cache_of_vllm_is_as_large_as_it_says_else_its_blocks_times_their_size(label, capacity_tokens):
    page = VLLM.read_text().replace('kv_cache_size_tokens="2097152",', label)
    (reading,) = readings_of(points_of(page)).values()
    assert reading.kv_capacity_tokens == capacity_tokens


def test_pages_of_something_else_give_no_engine():
    assert readings_of(points_of('python_info{version="3"} 1\nvllm:odd 3\n')) == {}


def test_series_are_read_with_escapes_times_and_exemplars_and_other_lines_are_passed_over():
    page = "\n".join(
        (
            "# HELP a_total what",
            r'a_total{path="C:\\x\n\"q\"} y",b="2"} 3 1700000000',
            'b_bucket{le="+Inf"} 4 # {trace="t"} 0.5',
            "c 1e3",
            "d NaN",
            "e not-a-number",
            "",
            "<html>",
        )
    )
    *points, nan = points_of(page)
    assert points == [
        Point("a_total", {"path": 'C:\\x\n"q"} y', "b": "2"}, 3.0),
        Point("b_bucket", {"le": "+Inf"}, 4.0),
        Point("c", {}, 1000.0),
    ]
    assert nan.name == "d" and nan.value != nan.value


def test_a_window_holds_what_the_counters_grew_by_and_the_requests_read_last(watched, rows, columns):
    watched.see(page_with(VLLM, num_requests_running=2))
    grown = {"generation_tokens_total": 28_900, "prompt_tokens_total": 2180, "iteration_tokens_total_count": 2415}
    watched.see(page_with(VLLM, num_requests_running=5, num_requests_waiting=1, kv_cache_usage_perc=0.5, **grown), 250)
    times = columns("engine_steps", "worker_id", "source", "start_ns", "end_ns", "busy_ns", "forward_passes")
    assert times == [("e-0", "sampled", MS, 251 * MS, None, 10)]
    load = ("running", "waiting", "decode_tokens", "prefill_tokens", "kv_used_tokens", "preemptions")
    assert columns("engine_steps", *load) == [(5, 1, 100, 20, KV_CAPACITY_TOKENS // 2, 0)]
    assert waits(rows) == []


def test_an_engine_without_a_request_in_both_readings_waits_for_requests(watched, rows, columns):
    page = VLLM.read_text()
    watched.see(page)
    watched.see(page, 250)
    watched.see(page_with(VLLM, generation_tokens_total=28_801), 250)
    watched.see(page_with(VLLM, generation_tokens_total=28_801, num_requests_waiting=1), 250)
    assert waits(rows) == [("requests", 0, 250 * MS)]
    assert columns("engine_steps", "start_ns", "decode_tokens", "waiting") == [(251 * MS, 1, 0), (501 * MS, 0, 1)]


def test_a_counter_that_falls_leaves_a_gap_and_counting_begins_anew(watched, columns):
    watched.see(page_with(VLLM, num_requests_running=1))
    watched.see(page_with(VLLM, num_requests_running=1, generation_tokens_total=10), 250)
    watched.see(page_with(VLLM, num_requests_running=1, generation_tokens_total=15), 250)
    assert columns("engine_steps", "start_ns", "decode_tokens") == [(251 * MS, 5)]
    assert watched.runs["0"].faults.counts == {"engine restart": 1}


def test_a_page_that_cannot_be_read_leaves_a_gap_and_not_zeros(watched, columns):
    busy = page_with(VLLM, num_requests_running=1)
    assert watched.see(busy) is None
    assert watched.see(OSError("connection refused"), 500) == "connection refused"
    assert watched.see("not metrics", 500) == "no engine on the page: it has neither vllm: nor sglang: series"
    assert watched.see(busy, 1) is None
    watched.see(page_with(VLLM, num_requests_running=1, generation_tokens_total=28_803), 250)
    assert columns("engine_steps", "start_ns", "decode_tokens") == [(1002 * MS, 3)]
    assert watched.runs["0"].faults.counts == {"scrape gap": 1}


def test_readings_a_second_apart_are_one_row(watched, columns):
    watched.see(page_with(VLLM, num_requests_running=1))
    watched.see(OSError("once"), 500)
    watched.see(page_with(VLLM, num_requests_running=1, generation_tokens_total=28_807), 500)
    assert columns("engine_steps", "start_ns", "end_ns", "decode_tokens") == [(MS, 1001 * MS, 7)]


def test_the_engine_s_own_busy_and_idle_time_are_taken_where_it_counts_them(watched, rows, columns):
    watched.see(sglang_page())
    watched.see(sglang_page(decode=40, busy=0.25, idle=0.125), 500)
    assert columns("engine_steps", "start_ns", "end_ns", "busy_ns", "forward_passes", "decode_tokens") == [
        (MS, 376 * MS, 250 * MS, None, 40)
    ]
    assert waits(rows) == [("requests", 375 * MS, 500 * MS)]


def test_own_times_that_come_in_lumps_are_shared_out_and_none_is_lost(watched, rows):
    watched.see(sglang_page())
    watched.see(sglang_page(busy=0.75), 500)
    watched.see(sglang_page(busy=0.75, idle=0.25), 500)
    watched.see(sglang_page(busy=0.875, idle=0.25), 500)
    assert [row["busy_ns"] // MS for row in rows("engine_steps")] == [500, 250, 125]
    assert waits(rows) == [("requests", 750 * MS, 1000 * MS)]


def test_idle_time_that_was_seen_before_the_engine_counted_it_is_not_counted_twice(watched, rows, columns):
    watched.see(sglang_page(running=0))
    watched.see(sglang_page(running=0), 500)
    watched.see(sglang_page(running=4, idle=0.5), 500)
    assert waits(rows) == [("requests", 0, 500 * MS)]
    assert columns("engine_steps", "start_ns", "end_ns") == [(501 * MS, 1001 * MS)]


def test_each_engine_on_a_page_is_a_worker_of_its_own(watched, columns, worker):
    one = page_with(VLLM, num_requests_running=1)
    watched.see(one)
    watched.see(one + one.replace('engine="0"', 'engine="1"'), 250)
    watched.see(one + one.replace('engine="0"', 'engine="1"'), 250)
    assert columns("engine_steps", "worker_id", "start_ns") == [("e-0", MS), ("e-0", 251 * MS), ("e-1", 251 * MS)]
    assert [worker(name)["kv_capacity_tokens"] for name in ("e-0", "e-1")] == [KV_CAPACITY_TOKENS] * 2
    watched.scraper.stop()
    assert None not in [worker(name)["stopped_ns"] for name in ("e-0", "e-1")]


SERIES = b'vllm:num_requests_running{engine="0"} 3\n'
PLAIN = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@pytest.fixture
def answers() -> Iterator[Callable[..., str]]:
    """Starts a server that sends these bytes to whoever asks, then others every 10 ms for 3 s, and hangs up."""
    servers = ExitStack()

    def serve(answer: bytes, *, then: bytes = b"") -> str:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(4096)
                with suppress(OSError):
                    self.request.sendall(answer)
                    for _ in range(300 if then else 0):
                        time.sleep(0.01)
                        self.request.sendall(then)

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        return f"{servers.enter_context(serving(server))}/metrics"

    with servers:
        yield serve


@pytest.fixture
def endpoint(answers: Callable[..., str]) -> str:
    return answers(PLAIN + VLLM.read_bytes())


@pytest.mark.parametrize("has_parent", [True, False])
def test_the_command_ends_with_the_process_that_it_is_to_run_beside(endpoint, tmp_path, has_parent, monkeypatch):
    """The parent that is still there ends after three looks."""
    parent = os.getppid() if has_parent else os.getpid()
    looks = iter([os.getppid()] * 3)
    monkeypatch.setattr("os.getppid", lambda: next(looks, 0))
    monkeypatch.setattr(scrape, "_INTERVAL_S", 0.05)
    assert scrape.main(["--url", endpoint, "--run-dir", str(tmp_path / "run"), "--beside", str(parent)]) == 0
    assert [path.name for path in tmp_path.glob("run/workers/*")] == ["engine-0.json"] * has_parent


def test_without_a_run_folder_the_command_says_so(endpoint, capsys):
    assert scrape.main(["--url", endpoint]) == 1
    assert "pass --run-dir or set RLSCOPE_RUN_DIR" in capsys.readouterr().err


def said_of(url: str, timeout_s: float = TIME_LIMIT_S) -> str | None:
    """What a reading of a page says; nothing may be recorded from it."""

    def refuse(engine: str, _reading: Reading) -> Run:
        raise AssertionError(f"recorded {engine}")

    return scrape.Scraper(lambda: scrape.page_of(url, timeout_s), refuse, lambda: 0).read()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + SERIES, "the page ends after 40 of 5000 bytes"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + SERIES,
            "the answer is no page over HTTP, or ends early (IncompleteRead)",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is no page over HTTP, or ends early (BadStatusLine)"),
    ],
    ids=["cut short", "cut short in a chunk", "not HTTP"],
)
def test_an_answer_that_is_no_whole_page_is_said_and_not_recorded(answer, said, answers):
    assert said_of(answers(answer)) == said


def test_a_page_that_does_not_end_is_given_up_after_the_timeout(answers, monkeypatch):
    """A minute goes by from one piece to the next."""
    monkeypatch.setattr(scrape, "time", SimpleNamespace(monotonic=count(step=60).__next__))
    assert said_of(answers(PLAIN, then=b"#"), 30.0) == "the page has not ended after 30.0 s"


def test_a_page_that_is_too_large_is_refused(answers, monkeypatch):
    monkeypatch.setattr(scrape, "_PAGE_BYTES", len(SERIES) - 1)
    assert said_of(answers(PLAIN + SERIES)) == "the page has more than 39 bytes, so it is not that of an engine"


def test_a_page_elsewhere_on_the_host_is_read_and_one_on_another_host_is_not(answers):
    page = answers(PLAIN + SERIES)

    def moved_to(url: str) -> str:
        return answers(f"HTTP/1.1 307 Moved\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode())

    assert scrape.page_of(moved_to(page), TIME_LIMIT_S) == SERIES.decode()
    other = page.replace("127.0.0.1", "localhost")
    assert said_of(moved_to(other)) == "HTTP Error 307: the page is on another host, 'localhost', which is not asked"
