"""Runs that lack something: the page says what is missing and why, and has no empty chart."""

import re

import pytest

from rlscope.pipeline import analyze
from rlscope.reports.page.html import render
from tests.reports.page.test_html import Page
from tests.reports.terminal_card import card
from tests.trace_folder import delivery_row, engine_row, sample_row, train_row, worker, write_run

SECOND = 10**9
SAMPLER = worker("e0", "sampler", 0, 20 * SECOND)
TRAINER = worker("t0", "trainer", 0, 20 * SECOND)
PASSES = [engine_row("e0", n * SECOND, (n + 1) * SECOND) for n in range(8)]
SAMPLES = [sample_row(f"s{n}", "e0", [(0, 0, 4)]) for n in range(4)]


def steps(count, worker_id="t0"):
    return [train_row(worker_id, (2 + 2 * n) * SECOND, (3 + 2 * n) * SECOND, n + 1) for n in range(count)]


def deliveries(count):
    return [delivery_row(f"s{n}", "t0", step=n + 1, consumer_version=n) for n in range(count)]


ODD = {
    "one worker": (
        ([TRAINER], {"train_steps": steps(4)}),
        ("no engine wrote engine steps", "no sample was recorded", "which samples were trained on is unknown"),
    ),
    "no trainer": (([SAMPLER], {"engine_steps": PASSES, "samples": SAMPLES}), ("no training step was recorded",)),
    "no model possible": (
        ([SAMPLER, TRAINER],
         {"samples": SAMPLES, "deliveries": deliveries(4), "train_steps": steps(4)}),
        ("No model result:", "no engine wrote engine steps"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_run_that_lacks_something_says_what_and_why(tmp_path, name):
    (workers, tables), said = ODD[name]
    text = render(analyze(write_run(tmp_path / "run", workers, **tables)))
    page = Page(text)
    assert "Not enough data for a verdict" in page.text
    for words in said:
        assert words in page.text
    assert text.count('class="chart') == len(page.specs)
    assert all(any(rows for rows in spec["datasets"].values()) for spec in page.specs)


def test_a_run_without_a_worker_file_says_that_its_gpu_time_is_not_known(tmp_path):
    names = [f"e{n:02}" for n in range(40)]
    run = write_run(
        tmp_path,
        [],
        samples=[sample_row(f"s{n}", names[n], [(n, 0, 4)]) for n in range(4)],
        deliveries=deliveries(4),
        engine_steps=[
            engine_row(name, n * SECOND, (n + 1) * SECOND, decode_tokens=20 if name == "e00" else 100)
            for name in names
            for n in range(200)
        ],
        train_steps=steps(4),
    )
    analysis = analyze(run)
    terminal, page = card(analysis, 200), Page(render(analysis))
    (straggler,) = [each for each in analysis.findings if each.rule == "straggling_engine"]
    assert straggler.cost_gpu_s is None
    assert "duration and GPUs not known" in terminal
    assert re.search(r"GPUs\s*no data", page.text)
    for text in (terminal, page.text):
        assert "no readable worker file" in text
        assert "Straggling engine" in text
        assert not re.search(r"(?<![\d.,])0 (GPU-s|GPUs)\b", text)
