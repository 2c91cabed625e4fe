"""No value that a plan can hold ends in a traceback: every number has both ends, and the model takes them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rlscope.errors import RlscopeError
from rlscope.input_file import json_schema
from rlscope.planning.build import plan_ahead, plan_of
from rlscope.planning.schema import model, read_plan
from tests.nightly import nightly
from tests.planning.small_plan import SMALL_PLAN, write_plan

ENDS: Final = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def with_value(folder: Path, section: str, key: str, value: object) -> Path:
    """The small plan with another value of one key."""
    text, header = re.sub(rf"^{key} = .*\n", "", SMALL_PLAN, flags=re.MULTILINE), f"[{section}]\n"
    text = text if header in text else text + header
    return write_plan(folder, text.replace(header, f"{header}{key} = {value}\n"))


def numbers(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The numbers that a key may be."""
    if part.get("type") in ("number", "integer"):
        yield part
    for each in (*part.get("anyOf", ()), *part.get("properties", {}).values()):
        yield from numbers(each)
    if isinstance(part.get("additionalProperties"), Mapping):
        yield from numbers(part["additionalProperties"])


def keys() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    schema = json_schema(model())
    for section in schema["properties"]:
        for key, part in schema["$defs"][section.capitalize()]["properties"].items():
            yield section, key, part


def test_every_number_of_a_plan_has_both_ends() -> None:
    open_ended = [
        (section, key)
        for section, key, part in keys()
        for number in numbers(part)
        if not all(any(name in number for name in names) for names in ENDS)
    ]
    assert open_ended == []


@pytest.mark.parametrize("value", ["nan", "-1e308", "1e308"])
def test_a_number_that_no_machine_has_is_refused_with_its_key(value: str, tmp_path: Path) -> None:
    for section, key, part in keys():
        if section != "current" and next(numbers(part), None) is not None:
            with pytest.raises(RlscopeError, match=rf"plan.toml, {section}\.{key}: found .*; expected"):
                read_plan(with_value(tmp_path, section, key, value))


@pytest.mark.parametrize("end", [0, 1], ids=["least", "most"])
def test_a_plan_with_a_number_at_either_end_is_planned_or_refused(end: int, tmp_path: Path) -> None:
    accepted = 0
    for section, key, part in keys():
        number = next(numbers(part), None)
        if number is None or section == "current":
            continue
        value = next(number[name] for name in ENDS[end] if name in number)
        try:
            plan_of(read_plan(with_value(tmp_path, section, key, value)))
            accepted += 1
        except RlscopeError as error:
            assert "plan.toml, " in str(error)
    assert accepted > 20


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("environment", "wait_s", 1e6),
        nightly("weights", "weight_update_s", 1e6),
        ("limits", "queue_capacity_samples", 10_000_000),
        ("batch", "kept_ratio", 1e-3),
        nightly("model", "attention_heads", 10_000_000),
    ],
)
def test_the_whole_forecast_takes_the_ends_that_once_broke_it(
    section: str, key: str, value: float, tmp_path: Path
) -> None:
    answer = plan_ahead(with_value(tmp_path, section, key, value))
    assert answer[0] is not None
