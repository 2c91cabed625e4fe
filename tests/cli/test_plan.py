"""`rlscope plan`: the example plans itself, every answer reads at any width, and what has none says why."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlscope
from rlscope.document import as_dict
from rlscope.model.forecast.plan import PlanResult
from rlscope.planning.build import plan_ahead
from rlscope.planning.schema import EXAMPLE, PlanFile
from rlscope.reports.documents.plan import plan_document
from rlscope.reports.text.plan import assumption_lines, plan_blocks, why
from tests.cli.command import invoke
from tests.planning.small_plan import PRESENT, SMALL_PLAN, write_plan
from tests.reports.terminal_card import printed

PLAN = f"""\
{SMALL_PLAN.replace("H100 SXM", "H200")}
total_steps = 1000
[price]
gpu_hour_price = 2
currency = "EUR"
"""
SMALL_BATCH = PLAN.replace("samples_per_step = 64", "samples_per_step = 8")


def words_of(answer: tuple[PlanFile, PlanResult]) -> str:
    """What is shown of it, without frames and line breaks."""
    file, planned = answer
    return " ".join(printed(plan_blocks(planned, file), 120).replace("│", " ").split())


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlanFile, PlanResult]:
    return plan_ahead(write_plan(tmp_path_factory.mktemp("plan"), PLAN))


def test_the_example_that_is_printed_plans_as_it_is(tmp_path: Path) -> None:
    printed = invoke("plan", "--example")
    assert printed.exit_code == 0 and printed.stdout == EXAMPLE.read_text(encoding="utf-8")
    done = invoke("plan", write_plan(tmp_path, printed.stdout), "--json", tmp_path / "answer.json")
    assert done.exit_code == 0
    best = json.loads((tmp_path / "answer.json").read_text())["recommendation"]["best"]
    assert f"Start with {best['trainer_gpus']} trainer GPUs and {best['sampler_gpus']} sampler GPUs" in done.stdout
    assert best["trainer_gpus"] + best["sampler_gpus"] == 32 and best["trainer_gpus"] % 4 == 0
    assert best["staleness_p95"] <= 4


def test_a_cap_on_the_command_line_counts_and_json_on_stdout_stands_alone(tmp_path: Path) -> None:
    done = invoke("plan", write_plan(tmp_path, SMALL_BATCH), "--max-staleness", "0", "--json", "-")
    answer = json.loads(done.stdout)
    assert done.exit_code == 0
    assert answer["recommendation"]["action"] == "unknown" and answer["recommendation"]["best"] is None
    assert {each["excluded"] for each in answer["candidates"]} == {"too_stale"}
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "No layout of these 6 GPUs is feasible. Reasons: staleness above the cap (5 splits)." in said
    assert re.search(r"The least stale layout is .* with a staleness of 0\.", said)


def planned_with(folder: Path, gpus: int, samples: int) -> tuple[PlanFile, PlanResult]:
    """The example with other numbers of GPUs and samples per step."""
    text = EXAMPLE.read_text(encoding="utf-8").replace("total = 32", f"total = {gpus}")
    return plan_ahead(write_plan(folder, text.replace("samples_per_step = 256", f"samples_per_step = {samples}")))


def middle(planned: PlanResult) -> float:
    return float(np.median(planned.best.drawn_tokens_per_s))


def test_gpus_that_gain_little_for_their_number_are_said_to_and_so_is_a_batch_too_small(tmp_path: Path) -> None:
    answer, few, larger = (planned_with(tmp_path, *each) for each in ((64, 32), (8, 32), (64, 256)))
    rate, scaling = middle(answer[1]), answer[1].scaling
    assert scaling is not None and (scaling.fewer_gpus, scaling.larger_batch) == (8, 256)
    assert few[1].scaling is None
    # What they gain is what plans of them say.
    assert scaling.gain_ratio == pytest.approx(rate / middle(few[1]) - 1.0, abs=0.05)
    assert scaling.larger_batch_gain_ratio == pytest.approx(middle(larger[1]) / rate - 1.0, rel=0.1)
    text = " ".join(why(answer[1]))
    assert f"8 times the GPUs gain only {scaling.gain_ratio:.1%}: 8 would train about" in text
    assert "The batch of 32 samples is too small for 64 GPUs: with 256 samples per step they would" in text
    document = as_dict(plan_document(answer[1], answer[0]))
    assert document["scaling"]["batch_is_too_small"] is True and document["scaling"]["fewer_gpus"] == 8


@pytest.mark.parametrize("arguments", [(), ("--example", "plan.toml"), ("plan.toml", "--max-staleness", "-1")])
def test_a_plan_or_the_example_is_asked_for(arguments: tuple[str, ...]) -> None:
    assert invoke("plan", *arguments).exit_code == 2


def test_the_cost_of_the_run_follows_from_its_hours(answer: tuple[PlanFile, PlanResult]) -> None:
    document: Any = as_dict(plan_document(answer[1], answer[0]))
    eta, best = document["time_to_finish"], document["recommendation"]["best"]
    assert eta["gpu_hours"] == pytest.approx(6 * eta["hours"]["value"])
    assert (eta["price"], eta["currency"]) == (pytest.approx(2 * eta["gpu_hours"]), "EUR")
    assert eta["hours"]["value"] == pytest.approx(1000 * best["step_s"] / 3600, rel=0.01)


def test_a_present_layout_is_what_gains_are_over(tmp_path: Path) -> None:
    file, planned = plan_ahead(write_plan(tmp_path, PLAN + PRESENT))
    advised: Any = as_dict(plan_document(planned, file))["recommendation"]
    current, best = advised["current"], advised["best"]
    assert (current["trainer_gpus"], current["sampler_gpus"], current["max_running"]) == (1, 5, 64)
    assert advised["action"] == "change" and best["gain_ratio"]["value"] > 0.05
    text = words_of((file, planned))
    assert "Use 4 trainer GPUs" in text or "Use 3 trainer GPUs" in text or "Use 5 trainer GPUs" in text
    assert "present 1 : 5 × 64" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_answer_fits_its_width_and_cuts_no_figure(answer: tuple[PlanFile, PlanResult], width: int) -> None:
    text = printed(plan_blocks(answer[1], answer[0]), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    for title in ("Plan", "Layouts", "Uncertainties", "Assumptions"):
        assert title in text
    best = answer[1].best
    assert f"{best.layout.trainer_gpus} : {best.layout.sampler_gpus} × {best.layout.max_running}" in text


def test_the_answer_says_how_sure_it_is_and_what_it_rests_on(answer: tuple[PlanFile, PlanResult]) -> None:
    text = words_of(answer)
    assert "nothing was measured" in text
    assert "It is the fastest split in" in text and "(median and 90% interval of the draws)" in text
    assert "6 GPUs, H200: 989 TFLOP/s dense bf16, 4.8 TB/s memory bandwidth, 141 GB each." in text
    assert "8.19G parameters. The KV cache of an engine of 1 GPU holds" in text
    assert "requests with few preemptions." in text
    assert "Responses: mean 400 tokens" in text and "at the cap of 1,024" in text
    assert "MFU 35.0%" in text and "Weights, gradients and optimizer state take 131 GB." in text
    assert "to the power 0.8 ± 0.2" in text
    assert "Weight updates are free." in text
    assert "No single measurement would change the recommended layout much." in text
    assert "EUR." in text


@pytest.mark.parametrize(
    ("plan", "cap", "said"),
    [
        (
            PLAN + PRESENT.replace("trainer_gpus = 1", "trainer_gpus = 3").replace("gpus = 5", "gpus = 3"),
            1,
            ["Keep 3 trainer GPUs and 3 sampler GPUs", "The present layout exceeds the staleness cap of 1."],
        ),
        (
            f"{PLAN}[limits]\nkv_capacity_tokens = 600\n",
            None,
            ["Reasons: KV cache too small (5 splits).",
             "holds 600 tokens; a prompt with the longest response takes 1.12k tokens",
             "Use more GPUs per engine or a lower max_output_tokens."],
        ),
    ],
    ids=["the present layout is kept", "no response fits the cache"],
)  # fmt: skip
def test_a_layout_beyond_the_cap_and_a_plan_without_one_say_why(
    tmp_path: Path, plan: str, cap: int | None, said: list[str]
) -> None:
    text = words_of(plan_ahead(write_plan(tmp_path, plan), cap))
    assert [words for words in said if words not in text] == []
    assert ("Uncertainties" in text) == ("Keep" in said[0])


@pytest.mark.parametrize(("gpus", "is_said"), [(8, False), (9, True)])
def test_engines_larger_than_a_node_are_said_to_be_slower_than_modeled(
    tmp_path: Path, gpus: int, is_said: bool
) -> None:
    plan = write_plan(tmp_path, PLAN.replace("total = 6", f"total = {gpus + 1}\ngpus_per_engine = {gpus}"))
    lines = assumption_lines(rlscope.plan(plan))
    assert any(f"Engines of {gpus} GPUs span nodes" in line for line in lines) == is_said
