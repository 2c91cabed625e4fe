"""What does not fit the model of a file is named by its key and described from its schema."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import ConfigDict, Field, TypeAdapter

from rlscope.errors import RlscopeError
from rlscope.input_file import FileKind, describe, json_schema, parse_source, read_source

KIND = FileKind("a menu", "`menu --example` prints one.", advice={"drinks": "Ask the bar."})


@dataclass(frozen=True)
class Coffee:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: Literal["coffee", "espresso"]
    shots: int
    pin: Annotated[str, Field(strict=True, json_schema_extra={"writeOnly": True})] = ""
    milk: bool = False


@dataclass(frozen=True)
class Menu:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    drinks: list[Coffee]
    size: Literal["small", "large"] = "small"
    tip: float | dict[str, float] | None = None


MENU = TypeAdapter(Menu)
DRINKS = '[[drinks]]\nkind = "coffee"\n'
ASK, EXAMPLE = "Ask the bar.", "`menu --example` prints one."


@pytest.mark.parametrize(
    ("text", "key", "found", "expected", "next_step"),
    [
        ("", "drinks", "no such key", "a list of tables.", ASK),
        (
            DRINKS + "shots = 1\npin = 1234", "drinks[0].pin", "a value that is hidden because it may be secret",
            "a string.", ASK,
        ),
        ("drinks = []\nsize = 'larg'", "size", "'larg'", "one of 'small', 'large'. Did you mean 'large'?", EXAMPLE),
        (
            "drinks = []\ntip = {a = 'b'}", "tip", "{'a': 'b'}", "a number, or a table, each value a number.",
            EXAMPLE,
        ),
        (
            f"drinks = []\nsize = {list(range(60))}", "size", "list of 230 characters", "one of 'small', 'large'.",
            EXAMPLE,
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_key_found_expected_and_the_next_step(text, key, found, expected, next_step):
    with pytest.raises(RlscopeError) as raised:
        parse_source(text, "m.toml", KIND).validated(MENU)
    assert str(raised.value) == f"m.toml, {key}: found {found}; expected {expected} {next_step}"


def test_a_schema_is_described_without_the_width_of_a_column() -> None:
    wide = json_schema(TypeAdapter(Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]))
    assert describe(wide, wide) == "a whole number"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 20_000, "nested too deep"),
        ("a = " + "9" * 5_000, "a number of thousands of digits"),
        ("[a]\nb = [1, 0x" + "f" * 5_000 + "]", "a number of thousands of digits"),
        ("a = 1\nb = [", r"not TOML \(.* \(at end of document\)\)"),
    ],
)
def test_text_that_is_not_toml_is_refused(text: str, why: str) -> None:
    with pytest.raises(RlscopeError, match=why):
        parse_source(text, "menu", KIND)


def test_a_pipe_a_device_or_a_huge_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(10**10)
    for path, why in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path / "huge", "bytes")):
        with pytest.raises(RlscopeError, match=f"{path.name}: found .*{why}.*; expected a menu"):
            read_source(path, KIND)
