"""The config of run.json is described by a schema that every recorded run fits."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from rlscope.trace.config import RunConfig, read_config, run_config_schema

RECORDED = sorted((Path(__file__).parents[2] / "sample_traces").glob("*/run.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_a_recorded_config_fits_the_schema_and_is_read_without_a_gap(path: Path) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))["config"]
    Draft202012Validator(run_config_schema()).validate(raw)
    config, gaps = read_config(raw)
    assert gaps == ()
    assert {name: value for name in raw if (value := getattr(config, name, None)) is not None} == {
        name: value for name, value in raw.items() if name in RunConfig.__slots__ and value is not None
    }


def test_entries_that_are_not_known_are_left_alone_and_wrong_ones_leave_the_others() -> None:
    config, gaps = read_config({"total_gpus": 8, "group_size": "8", "learning_rate": 1e-6, "currency": None})
    assert config == RunConfig(total_gpus=8)
    assert gaps == ("run.json: config.group_size is '8', expected a whole number; it is ignored",)


def test_the_schema_says_what_every_entry_means() -> None:
    entries = run_config_schema()["properties"]
    assert set(entries) == set(RunConfig.__slots__)
    assert all(entry["description"] for entry in entries.values())
