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


@pytest.mark.parametrize(
    ("entry", "value", "expected"),
    [
        ("group_size", "8", "a whole number at least 1"),
        ("total_gpus", True, "a whole number at least 1"),
        ("max_staleness", -1, "a whole number at least 0"),
        ("model", "big", "an object"),
        ("dispatch", "robin", "one of 'least_loaded', 'pulled'"),
        ("max_running", 2**63, "a whole number at least 1 that fits in 64 bits"),
        ("gpu_hour_price", 10**400, "a number at least 0 that fits in 64 bits"),
        ("gpu_hour_price", float("inf"), "a number at least 0"),
        ("max_output_tokens", 0, "a whole number at least 1"),
        ("batches_ahead", 10_001.0, "a number at least 0 and at most 10,000"),
        ("batches_ahead", float("nan"), "a number at least 0 and at most 10,000"),
    ],
)
def test_a_wrong_entry_is_left_out_and_told_and_an_unknown_one_left_alone(
    entry: str, value: object, expected: str
) -> None:
    config, gaps = read_config({"framework": "trl", "learning_rate": 1e-6, "currency": None, entry: value})
    assert config == RunConfig(framework="trl")
    assert gaps == (f"run.json: config.{entry} is {value!r}, expected {expected}; it is ignored",)


def test_the_schema_says_what_every_entry_means() -> None:
    entries = run_config_schema()["properties"]
    assert set(entries) == set(RunConfig.__slots__)
    assert all(entry["description"] for entry in entries.values())
