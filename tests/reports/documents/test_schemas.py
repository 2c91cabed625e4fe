"""The published schemas: they are what the code says, and what the documents hold fits them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from typer.testing import CliRunner

from docs.generate import DOCS, DOCUMENTS, PAGES
from rlscope.analysis.result import AnalysisResult
from rlscope.cli import app
from rlscope.planning.schema import EXAMPLE
from rlscope.reports.documents.analysis import analysis_document
from rlscope.reports.documents.data_quality import ClockOffsetJson
from tests.planning.small_plan import SMALL_PLAN
from tests.reports.analysis_fixture import hostile_analysis
from tests.reports.documents.test_model import ANALYSES


def schema(name: str) -> dict[str, Any]:
    return json.loads((DOCS / "schema" / f"{name}.schema.json").read_text(encoding="utf-8"))


def faults(name: str, document: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schema(name)).iter_errors(document)]


@pytest.mark.parametrize("page", [f"schema/{name}.schema.json" for name in DOCUMENTS] + ["json.md"])
def test_the_published_pages_are_those_of_the_code(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page](), "run `make docs`"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_schema_is_a_valid_one_with_a_name_of_its_own(name: str) -> None:
    published = schema(name)
    Draft202012Validator.check_schema(published)
    assert published["$id"] == f"urn:rlscope:{name}:1"
    assert published["title"].startswith("rlscope ") and published["description"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_key_is_required_and_no_other_is_allowed(name: str) -> None:
    published = schema(name)
    objects = [part for part in published["$defs"].values() if part["type"] == "object"]
    for part in (published, *objects):
        assert part["required"] == list(part["properties"]) and part["additionalProperties"] is False


@pytest.mark.parametrize("make", [*ANALYSES.values(), hostile_analysis], ids=[*ANALYSES, "hostile"])
def test_an_analysis_fits_its_schema_whatever_the_model_can_say(make: Callable[[], AnalysisResult]) -> None:
    assert faults("analysis", json.loads(analysis_document(make()).as_json())) == []


PRESENT = "[current]\ntrainer_gpus = 1\nsampler_gpus = 5\nmax_running = 64\n"
PLANS = {
    "the example": EXAMPLE.read_text(encoding="utf-8"),
    "a layout in use": SMALL_PLAN.replace("H100 SXM", "H200") + PRESENT,
}


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
def test_the_answer_to_a_plan_fits_its_schema(tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, ["plan", str(plan), "--json", "-"], catch_exceptions=False)
    assert faults("plan", json.loads(done.stdout)) == []


def test_a_key_that_is_missing_or_too_many_or_of_another_type_does_not_fit() -> None:
    document = analysis_document(hostile_analysis()).as_dict()
    assert faults("analysis", {name: value for name, value in document.items() if name != "time_to_finish"})
    assert faults("analysis", {**document, "outlook": None})
    assert faults("analysis", {**document, "schema_version": "1"})


def test_a_figure_keeps_its_kind_and_is_null_where_it_is_no_number() -> None:
    known = {"host": "a", "against": "b"}
    whole, nothing = (ClockOffsetJson(**known, offset_s=2, uncertainty_s=each) for each in (math.inf, math.nan))
    assert '"offset_s": 2,' in whole.as_json()
    assert whole.uncertainty_s is None and nothing.uncertainty_s is None


@pytest.mark.parametrize(
    "keys",
    [
        {"offset_s": "2", "uncertainty_s": None},
        {"offset_s": True, "uncertainty_s": None},
        {"offset_s": 2.0},
        {"offset_s": 2.0, "uncertainty_s": None, "drift_s": 0.0},
    ],
    ids=["a text", "a truth value", "a key missing", "a key too many"],
)
def test_a_document_is_made_of_its_own_keys_and_types_alone(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClockOffsetJson(host="a", against="b", **keys)


def test_a_document_does_not_change() -> None:
    document = ClockOffsetJson(host="a", against="b", offset_s=1.0, uncertainty_s=None)
    with pytest.raises(ValidationError):
        document.host = "c"
