"""`rlscope plan`: the example plans itself, every answer reads at any width, and what has none says why."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import rlscope
from rlscope.cli import app
from rlscope.document import as_dict
from rlscope.errors import ArgumentError
from rlscope.model.forecast.plan import PlanResult
from rlscope.planning.build import plan_ahead
from rlscope.planning.schema import EXAMPLE, PlanFile
from rlscope.reports.documents.plan import plan_document
from rlscope.reports.terminal import print_blocks
from rlscope.reports.text.plan import assumption_lines, plan_blocks, why
from tests.planning.small_plan import SMALL_PLAN

PLAN = f"""\
{SMALL_PLAN.replace("H100 SXM", "H200")}
total_steps = 1000
[price]
gpu_hour_price = 2
currency = "EUR"
"""
PRESENT = "[current]\ntrainer_gpus = 1\nsampler_gpus = 5\nmax_running = 64\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)


def shown(answer: tuple[PlanFile, PlanResult], width: int) -> str:
    console = Console(width=width, record=True, file=StringIO())
    file, planned = answer
    print_blocks(plan_blocks(planned, file), console)
    return console.export_text()


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlanFile, PlanResult]:
    return plan_ahead(write(tmp_path_factory.mktemp("plan"), PLAN))


@pytest.fixture(scope="module")
def document(answer: tuple[PlanFile, PlanResult]) -> dict[str, Any]:
    file, planned = answer
    return as_dict(plan_document(planned, file))


def test_the_example_that_is_printed_plans_as_it_is(tmp_path: Path) -> None:
    printed = invoke("--example")
    assert printed.exit_code == 0 and printed.stdout == EXAMPLE.read_text(encoding="utf-8")
    done = invoke(write(tmp_path, printed.stdout), "--json", tmp_path / "answer.json")
    assert done.exit_code == 0
    best = json.loads((tmp_path / "answer.json").read_text())["recommendation"]["best"]
    assert f"Start with {best['trainer_gpus']} trainer GPUs and {best['sampler_gpus']} sampler GPUs" in done.stdout
    assert best["trainer_gpus"] + best["sampler_gpus"] == 32 and best["trainer_gpus"] % 4 == 0
    assert best["staleness_p95"] <= 4


def test_a_cap_on_the_command_line_counts_and_json_on_stdout_stands_alone(tmp_path: Path) -> None:
    done = invoke(write(tmp_path, PLAN), "--max-staleness", "0", "--json", "-")
    answer = json.loads(done.stdout)
    assert done.exit_code == 0
    assert answer["recommendation"]["action"] == "unknown" and answer["recommendation"]["best"] is None
    assert {each["excluded"] for each in answer["candidates"]} == {"too_stale"}
    assert "No layout of these 6 GPUs is feasible" in done.stderr


def planned_with(folder: Path, gpus: int, samples: int) -> tuple[PlanFile, PlanResult]:
    """The example with other numbers of GPUs and samples per step."""
    text = EXAMPLE.read_text(encoding="utf-8").replace("total = 32", f"total = {gpus}")
    return plan_ahead(write(folder, text.replace("samples_per_step = 256", f"samples_per_step = {samples}")))


def middle(planned: PlanResult) -> float:
    assert planned.best is not None and planned.best.drawn_tokens_per_s is not None
    return float(np.median(planned.best.drawn_tokens_per_s))


def test_gpus_that_gain_little_for_their_number_are_said_to_and_so_is_a_batch_too_small(tmp_path: Path) -> None:
    """The example's batch on 512 GPUs."""
    answer = planned_with(tmp_path, 512, 256)
    scaling = answer[1].scaling
    assert scaling is not None and (scaling.fewer_gpus, scaling.larger_batch) == (32, 4096)
    assert scaling.gain_ratio < 0.3
    text = " ".join(why(answer[1]))
    assert f"16 times the GPUs gain only {scaling.gain_ratio:.1%}: 32 would train about" in text
    assert "The batch of 256 samples is too small for 512 GPUs: with 4,096 samples per step they would" in text
    document = as_dict(plan_document(answer[1], answer[0]))
    assert document["scaling"]["batch_is_too_small"] is True and document["scaling"]["fewer_gpus"] == 32


@pytest.mark.nightly
def test_what_more_gpus_and_a_larger_batch_gain_is_what_plans_of_them_say(tmp_path: Path) -> None:
    asked, few, larger = (planned_with(tmp_path, *each)[1] for each in ((512, 256), (32, 256), (512, 4096)))
    rate, scaling = middle(asked), asked.scaling
    assert scaling is not None and few.scaling is None
    assert scaling.gain_ratio == pytest.approx(rate / middle(few) - 1.0, abs=0.05)
    assert scaling.larger_batch_gain_ratio == pytest.approx(middle(larger) / rate - 1.0, rel=0.1)


@pytest.mark.parametrize("arguments", [(), ("--example", "plan.toml"), ("plan.toml", "--max-staleness", "-1")])
def test_a_plan_or_the_example_is_asked_for(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_the_document_has_the_shapes_of_an_analysis(document: dict[str, Any]) -> None:
    advised, best = document["recommendation"], document["recommendation"]["best"]
    assert (document["schema_version"], advised["action"], advised["current"]) == (1, "change", None)
    assert best in document["candidates"]
    rate = best["tokens_per_s"]
    assert rate["low"] < rate["value"] < rate["high"]
    assert {each["grade"] for each in document["candidates"]} == {"assumed"}
    assert {each["gain_ratio"] for each in document["candidates"]} == {None}
    assert sum(each["probability_best"] or 0.0 for each in document["candidates"]) == pytest.approx(1.0)
    assert document["synchronous_tokens_per_s"] < rate["value"] < document["bound_tokens_per_s"] * 1.1


def test_the_cost_of_the_run_follows_from_its_hours(document: dict[str, Any]) -> None:
    eta, best = document["time_to_finish"], document["recommendation"]["best"]
    assert eta["gpu_hours"] == pytest.approx(6 * eta["hours"]["value"])
    assert (eta["price"], eta["currency"]) == (pytest.approx(2 * eta["gpu_hours"]), "EUR")
    assert eta["hours"]["value"] == pytest.approx(1000 * best["step_s"] / 3600, rel=0.01)


def test_a_present_layout_is_what_gains_are_over(tmp_path: Path) -> None:
    file, planned = plan_ahead(write(tmp_path, PLAN + PRESENT))
    advised: Any = as_dict(plan_document(planned, file))["recommendation"]
    current, best = advised["current"], advised["best"]
    assert (current["trainer_gpus"], current["sampler_gpus"], current["max_running"]) == (1, 5, 64)
    assert advised["action"] == "change" and best["gain_ratio"]["value"] > 0.05
    text = " ".join(shown((file, planned), 120).split())
    assert "Use 4 trainer GPUs" in text or "Use 3 trainer GPUs" in text or "Use 5 trainer GPUs" in text
    assert "present 1 : 5 × 64" in text


def test_a_present_layout_that_is_kept_beyond_the_cap_is_said_to_be(tmp_path: Path) -> None:
    present = PRESENT.replace("trainer_gpus = 1", "trainer_gpus = 3").replace("sampler_gpus = 5", "sampler_gpus = 3")
    capped = write(tmp_path, f"{PLAN}{present}[limits]\nmax_staleness = 1\n")
    text = " ".join(shown(plan_ahead(capped), 120).replace("│", " ").split())
    assert "Keep 3 trainer GPUs and 3 sampler GPUs" in text
    assert "The present layout exceeds the staleness cap of 1." in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_answer_fits_its_width_and_cuts_no_figure(answer: tuple[PlanFile, PlanResult], width: int) -> None:
    text = shown(answer, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    for title in ("Plan", "Layouts", "Uncertainties", "Assumptions"):
        assert title in text
    best = answer[1].best
    assert best is not None
    assert f"{best.layout.trainer_gpus} : {best.layout.sampler_gpus} × {best.layout.max_running}" in text


def test_the_answer_says_how_sure_it_is_and_what_it_rests_on(answer: tuple[PlanFile, PlanResult]) -> None:
    text = " ".join(shown(answer, 120).replace("│", " ").split())
    assert "nothing was measured" in text
    assert "It is the fastest split in" in text and "(median and 90% interval of the draws)" in text
    assert "6 GPUs, H200: 989 TFLOP/s dense bf16, 4.8 TB/s memory bandwidth, 141 GB each." in text
    assert "8.19G parameters. The KV cache of an engine of 1 GPU holds" in text
    assert "Responses: mean 400 tokens" in text and "at the cap of 1,024" in text
    assert "MFU 35.0%" in text and "Weights, gradients and optimizer state take 131 GB." in text
    assert "to the power 0.8 ± 0.2" in text
    assert "Weight updates are free." in text
    assert "Largest uncertainty: training speed." in text
    assert "EUR." in text


def test_where_no_layout_can_be_used_the_answer_says_why_and_what_is_left(tmp_path: Path) -> None:
    text = " ".join(shown(plan_ahead(write(tmp_path, PLAN), 0), 120).replace("│", " ").split())
    assert "No layout of these 6 GPUs is feasible." in text
    assert "Reasons: staleness above the cap (5 splits)." in text
    assert "The least stale layout is" in text
    assert "with a staleness of 0." in text
    assert "Uncertainties" not in text


def test_a_cache_that_holds_no_longest_response_is_said_with_what_would_fit(tmp_path: Path) -> None:
    answer = plan_ahead(write(tmp_path, f"{PLAN}[limits]\nkv_capacity_tokens = 600\n"))
    text = " ".join(shown(answer, 120).replace("│", " ").split())
    assert "Reasons: KV cache too small (5 splits)." in text
    assert "holds 600 tokens; a prompt with the longest response takes 1.12k tokens" in text
    assert "Use more GPUs per engine or a lower max_output_tokens." in text


def test_a_layout_is_forecast_beside_the_recommended_one(tmp_path: Path) -> None:
    plan = write(tmp_path, PLAN)
    done = invoke(plan, "--layout", "5:1", "--running", "32", "--json", tmp_path / "answer.json")
    words = " ".join(done.stdout.replace("│", " ").split())
    assert "The requested layout, 5 trainer GPUs and 1 sampler GPU, with up to 32 running requests per engine" in words
    assert "Against the recommended one: −" in words and "trainers are idle" in words
    found = json.loads((tmp_path / "answer.json").read_text())["asked"]
    layout = ("trainer_gpus", "sampler_gpus", "max_running")
    assert tuple(found[key] for key in layout) == (5, 1, 32)
    rate = found["tokens_per_s"]
    assert rate["low"] < rate["value"] < rate["high"] and found["gain_ratio"]["high"] < 0.0
    assert found["step_s"] > 0.0 and found["staleness_p95"] >= 0 and found["excluded"] is None
    assert 0.0 < found["trainer_idle_ratio"] < 1.0 and 0.0 <= found["sampler_idle_ratio"] < 0.1


def test_the_recommended_layout_asked_about_is_called_that(tmp_path: Path) -> None:
    plan = write(tmp_path, PLAN)
    best = rlscope.plan(plan).best
    assert best is not None
    asked = rlscope.plan(plan, layout=f"{best.layout.trainer_gpus}:{best.layout.sampler_gpus}")
    assert asked.asked is asked.best
    assert "is the recommended one" in " ".join(why(asked))
    assert json.loads(asked.to_json())["asked"]["gain_ratio"]["value"] == 0.0


ENGINES = PLAN.replace("total = 6", "total = 16\ngpus_per_engine = 4\ngpus_per_trainer_replica = 2")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("4:12", None),
        ("4:8", None),
        ("3:12", "found 3 trainer GPUs; expected a multiple of 2. The nearest is 2 or 4"),
        ("4:11", "found 11 sampler GPUs; expected a multiple of 4, the GPUs of an engine. The nearest is 8 or 12"),
        ("1:12", "The nearest is 2."),
        ("0:16", "found 0 trainer GPUs"),
        ("6:12", "found 18 GPUs in 6:12; expected at most gpus.total, 16"),
        ("6-8", "found '6-8'; expected TRAINERS:SAMPLERS"),
        (None, "found no layout beside running"),
    ],
)
def test_a_layout_that_the_gpus_do_not_make_is_refused_with_the_nearest(
    tmp_path: Path, layout: str | None, message: str | None
) -> None:
    plan = write(tmp_path, ENGINES)
    if message is None:
        assert rlscope.plan(plan, layout=layout, running=8).asked is not None
    else:
        with pytest.raises(ArgumentError, match=message):
            rlscope.plan(plan, layout=layout, running=8)
        assert invoke(plan, *(() if layout is None else ("--layout", layout)), "--running", "8").exit_code == 2


def test_whole_nodes_belong_to_one_side_of_a_layout(tmp_path: Path) -> None:
    plan = write(tmp_path, PLAN.replace("total = 6", "total = 16\ngpus_per_node = 8"))
    with pytest.raises(ArgumentError, match="found 4 trainer GPUs; expected a multiple of 8, in whole nodes of 8"):
        rlscope.plan(plan, layout="4:8", running=8)
    assert rlscope.plan(plan, layout="8:7", running=8).asked is not None


@pytest.mark.parametrize(("gpus", "is_said"), [(8, False), (9, True)])
def test_engines_larger_than_a_node_are_said_to_be_slower_than_modelled(
    tmp_path: Path, gpus: int, is_said: bool
) -> None:
    plan = write(tmp_path, PLAN.replace("total = 6", f"total = {gpus + 1}\ngpus_per_engine = {gpus}"))
    lines = assumption_lines(rlscope.plan(plan))
    assert any(f"Engines of {gpus} GPUs span nodes" in line for line in lines) == is_said
