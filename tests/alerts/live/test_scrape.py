"""Engines without hooks are recorded while their run is watched, and read with its log afterwards."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import rlscope_otel

from rlscope.alerts.live.facts import LiveView
from rlscope.alerts.live.scrape import engines_folder, scraping
from rlscope.alerts.live.watch import watch_run
from rlscope.api import analyze
from rlscope.errors import ArgumentError
from rlscope.importers.options import import_options
from rlscope.reports.text.verdict import headline, label, next_step
from rlscope.reports.text.watch import fact_rows
from tests.serving import serving
from tests.waiting import TIME_LIMIT_S, until

PAGES = Path(__file__).parents[3] / "instrumentation" / "tests" / "integrations" / "pages"
VLLM = (PAGES / "vllm-0.32.0.txt").read_text()
PHASES = "step=time/total,generate=time/sampling,train=time/train_step"
STEP_S = 0.125
STEP = {"time/total": STEP_S, "time/sampling": 0.75 * STEP_S, "time/train_step": 0.25 * STEP_S}


def vllm_page(tokens: int) -> str:
    page = VLLM.replace("generation_tokens_total{", "unread_tokens_total{")
    return page + f'vllm:generation_tokens_total{{engine="0"}} {tokens}\nvllm:num_requests_running{{engine="0"}} 3\n'


class Server(ThreadingHTTPServer):
    fails = False
    forgotten_tokens = 0


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that decodes 1,000 tokens per second for three requests; `fails` makes it answer 503.

    `forgotten_tokens` are those of before a restart.
    """
    began_s = time.monotonic()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens = int(1000 * (time.monotonic() - began_s)) - made.forgotten_tokens
            self.send_response(503 if made.fails else 200)
            self.end_headers()
            self.wfile.write(vllm_page(tokens).encode())

        def log_message(self, *_: object) -> None: ...

    made = Server(("127.0.0.1", 0), Page)
    with serving(made):
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is read, and its rows are written, every tenth of a second."""
    monkeypatch.setattr("rlscope.alerts.live.scrape._MODULE", "tests.alerts.live.quick_scrape")


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/metrics"


class Training:
    """A trainer that logs a step every eighth of a second: it waits for three quarters of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.looks, self._steps = path, list[LiveView](), 0
        self._next_s = time.time() + STEP_S
        self.ends_s = time.monotonic() + TIME_LIMIT_S

    def see(self, look: LiveView) -> None:
        self.looks.append(look)
        while time.time() >= self._next_s:
            self._steps += 1
            with self.path.open("a") as file:
                file.write(json.dumps({"step": self._steps, "_timestamp": self._next_s, **STEP}) + "\n")
            self._next_s += STEP_S

    def interruptions(self) -> int:
        """Two, which end the watch, as soon as the engine was seen for some steps."""
        facts = self.looks[-1].facts if self.looks else None
        is_seen = facts is not None and facts.running_per_engine and self._steps >= 8
        return 2 if is_seen or time.monotonic() > self.ends_s else 0


@pytest.mark.usefixtures("no_model", "quick")
def test_a_watch_of_a_log_and_a_metrics_page_has_the_verdict_of_their_analysis(server: Server, tmp_path: Path) -> None:
    training, notes = Training(tmp_path / "m.jsonl"), list[str]()
    options = import_options(phases=PHASES, gpus="trainer=1,sampler=2", gpus_per_engine=2)
    rules = tmp_path / "rules.toml"
    rules.write_text('interval = "1s"')
    watch_run(
        training.path, rules, None, 0.1, training.see, training.interruptions, notes.append,
        options=options, scrape=[address(server)],
    )  # fmt: skip
    facts = training.looks[-1].facts
    assert facts.running_per_engine == 3
    folder = engines_folder(training.path)
    assert notes == [
        f"the engines are in {folder}; read them with: rlscope analyze {training.path} --engine-log {folder}"
    ]
    joined = import_options(phases=PHASES, gpus="trainer=1,sampler=2", engine_logs=[str(folder)])
    analysis = analyze(training.path, page=False, options=joined)
    assert analysis.verdict.bottleneck == facts.verdict.bottleneck == "samplers"
    assert dict(fact_rows(facts, training.looks[-1].now_ns))["verdict"].startswith(f"{label(analysis)}. ")
    assert (analysis.run.trainer_gpus, analysis.run.sampler_gpus) == (1, 2)
    assert headline(analysis).startswith("Trainers wait for samples") and "the log does not show" not in headline(
        analysis
    )
    assert next_step(analysis).startswith("Speed up sampling") and "--engine-log" not in next_step(analysis)


@pytest.mark.usefixtures("quick")
def test_the_engines_of_a_run_folder_are_recorded_into_it(server: Server, tmp_path: Path) -> None:
    rules, looks, ends_s = tmp_path / "rules.toml", list[LiveView](), time.monotonic() + TIME_LIMIT_S
    rules.write_text('interval = "1s"')

    def train(look: LiveView) -> None:
        looks.append(look)
        with run.train_step(len(looks), version_in=0, tokens=1):
            pass

    def interruptions() -> int:
        facts = looks[-1].facts if looks else None
        return 2 * bool((facts and facts.running_per_engine) or time.monotonic() > ends_s)

    with rlscope_otel.start_run(tmp_path / "run", "trainer", "t0", gpu_count=1, flush_interval_s=0.1) as run:
        watch_run(tmp_path / "run", rules, None, 0.1, train, interruptions, print, scrape=[address(server)])
    facts = looks[-1].facts
    assert {side.role for side in facts.sides} == {"trainer", "sampler"} and facts.running_per_engine == 3


def test_a_page_that_is_not_read_is_said_until_it_is_and_a_restart_of_its_engine_once(
    server: Server, tmp_path: Path
) -> None:
    server.fails = True
    with scraping([address(server)], tmp_path / "engines", 1) as (scraper,):
        assert until(scraper.trouble) == f"{address(server)}: HTTP Error 503: Service Unavailable; retrying every 0.5 s"
        server.fails = False
        until(lambda: scraper.trouble() is None)
        until(lambda: list((tmp_path / "engines").glob("workers/*.json")))
        server.forgotten_tokens = 1_000_000_000
        assert until(scraper.trouble).startswith(f"{address(server)}: engine restart: a counter decreased")
        assert scraper.trouble() is None
        server.fails = True
        assert until(scraper.trouble).startswith(f"{address(server)}: HTTP Error 503")


def test_a_page_that_is_named_twice_is_read_once(server: Server, tmp_path: Path) -> None:
    with scraping([address(server)] * 2, tmp_path / "engines", 1) as scrapers:
        assert len(scrapers) == 1


def test_a_recording_that_ends_says_why(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlscope.alerts.live.scrape._MODULE", "rlscope_otel.absent")
    with scraping([address(server)], tmp_path / "engines", 1) as (scraper,):
        trouble = until(lambda: "recording ended: " in (said := scraper.trouble() or "") and said)
    assert trouble.startswith(f"{address(server)}: recording ended: ")
    assert "No module named rlscope_otel.absent" in trouble


@pytest.mark.parametrize("url", ["localhost:8000/metrics", "file:///etc/passwd", "http://", "http://h:port/metrics"])
def test_an_address_that_is_no_page_is_refused_before_anything_starts(url: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected the address of an engine's metrics page"):
        watch_run(tmp_path / "run.log", None, None, 0.1, print, lambda: 2, print, scrape=[url])
    assert not engines_folder(tmp_path / "run.log").exists()
