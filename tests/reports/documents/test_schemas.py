"""The published schemas: they are what the code says, and what the documents hold fits them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic_core import PydanticSerializationError

import rlscope
from docs.generate import DOCUMENTS
from rlscope.analysis.data_quality import ClockOffset
from rlscope.analysis.result import AnalysisResult
from rlscope.document import as_dict, dump, extended, load
from rlscope.reports.documents.analysis import analysis_document
from tests.planning.small_plan import PRESENT, SMALL_PLAN, write_plan
from tests.reports.analysis_fixture import hostile_analysis
from tests.reports.documents.test_model import ANALYSES
from tests.schemas import faults, schema


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
    assert faults("analysis", dump(analysis_document(make()))) == []


PLANS = {
    "no layout in use": SMALL_PLAN,
    "a layout in use": SMALL_PLAN.replace("H100 SXM", "H200") + PRESENT,
}


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS)
def test_the_answer_to_a_plan_fits_its_schema(tmp_path: Path, text: str) -> None:
    assert faults("plan", rlscope.plan(write_plan(tmp_path, text)).to_json()) == []


CLOCK = ClockOffset(host="a", against="b", offset_s=2.0, uncertainty_s=None)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_figure_that_is_no_number_is_null(value: float) -> None:
    assert as_dict(replace(CLOCK, uncertainty_s=value))["uncertainty_s"] is None


def test_a_document_holds_values_of_its_types_alone() -> None:
    with pytest.raises(PydanticSerializationError):
        dump(replace(CLOCK, offset_s="2"))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Box:
    """A box."""

    depth_s: float
    inner: tuple[ClockOffset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledBox(Box):
    """A box with a label."""

    label: str


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"inner": []}', "depth_s: Field required"),
        ('{"depth_s": "2"}', "depth_s: Input should be a valid number"),
        ('{"depth_s": NaN}', "depth_s: Input should be a finite number"),
        ('{"depth_s": 1, "inner": [{}]}', "inner.0.host: Field required"),
    ],
)
def test_the_first_invalid_key_is_named(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{fault}$"):
        load(Box, text.encode())


def test_a_document_of_several_parts_takes_each_field_of_the_first_that_has_it():
    parts = (Box(1.0), LabeledBox(depth_s=2.0, label="a"))
    assert extended(LabeledBox, *parts) == LabeledBox(depth_s=1.0, label="a")
    assert extended(LabeledBox, Box(1.0), None).label is None, "of a part that does not exist"
    with pytest.raises(TypeError, match="label"):
        extended(LabeledBox, Box(1.0))
