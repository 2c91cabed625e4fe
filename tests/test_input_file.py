"""A file's entries are found by line in TOML and YAML, and what does not fit its model is described from its schema."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import ConfigDict, Field, TypeAdapter

from rlscope.errors import RlscopeError
from rlscope.input_file import FileKind, Place, describe, dotted, json_schema, parse_source

KIND = FileKind("a menu", "`menu --example` prints one.", advice={"drinks": "Ask the bar."})
TOML = '''\
# a comment with [a.header]
top = 1
"quoted key" = 2
a.b.c = 3
[soups]
text = """
cold = 1
[not.a.header]
"""
hot = true
[[mains]]
name = "first"
[mains.price]
eur = 3
[[mains]]
sides = { rice = 1 }
[drinks] # with a comment
'''
YAML = """\
top: 1
soups:
  hot: true
mains:
- name: first
  price: {eur: 3}
- sides:
    rice: 1
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("top",), 2),
        (("quoted key",), 3),
        (("a", "b", "c"), 4),
        (("a",), 4),
        (("soups",), 5),
        (("soups", "hot"), 10),
        (("mains", 0, "name"), 12),
        (("mains", 0, "price", "eur"), 14),
        (("mains", 1), 15),
        (("mains", 1, "sides", "rice"), 16),
        (("drinks", "missing"), 17),
    ],
)
def test_the_line_of_an_entry_of_toml_is_its_own_or_that_of_the_nearest_around_it(place: Place, line: int) -> None:
    source = parse_source(TOML, "menu.toml", KIND)
    assert source.at(place) == f"menu.toml:{line}"
    assert source.at(("not",)) == source.at(("soups", "cold")).removesuffix(":5") == "menu.toml"


@pytest.mark.parametrize(
    ("place", "line"),
    [(("soups", "hot"), 3), (("mains", 0, "price", "eur"), 6), (("mains", 1, "sides", "rice"), 8), (("mains", 1), 7)],
)
def test_the_line_of_an_entry_of_yaml_is_its_own(place: Place, line: int) -> None:
    assert parse_source(YAML, "menu.yaml", KIND, is_yaml=True).at(place) == f"menu.yaml:{line}"


def test_a_place_is_written_as_one_path() -> None:
    assert dotted(("rules", 0, "labels", "severity")) == "rules[0].labels.severity"


@dataclass(frozen=True)
class Tea:
    kind: Literal["tea"]
    leaf: str


@dataclass(frozen=True)
class Coffee:
    kind: Literal["coffee"]
    shots: Annotated[int, Field(strict=True, ge=1, le=4)]
    pin: Annotated[str, Field(strict=True, json_schema_extra={"writeOnly": True})] = ""


@dataclass(frozen=True)
class Menu:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    drinks: list[Annotated[Tea | Coffee, Field(discriminator="kind")]]
    size: Literal["small", "large"] = "small"
    tip: float | dict[str, float] | None = None


MENU = TypeAdapter(Menu)
DRINKS = '[[drinks]]\nkind = "coffee"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "m.toml, drinks: found no such key; expected a list of tables. Ask the bar."),
        ("drinks = [3]", "m.toml:1, drinks[0]: found 3; expected a table. Ask the bar."),
        (
            DRINKS + "shot = 1",
            "m.toml:3, drinks[0].shot: found unknown key 'shot' for kind 'coffee'; expected one of kind, shots, pin."
            " Did you mean 'shots'? Ask the bar.",
        ),
        (
            DRINKS + "shots = 5",
            "m.toml:3, drinks[0].shots: found 5; expected a whole number at least 1 and at most 4. Ask the bar.",
        ),
        (
            DRINKS + "shots = 1\npin = 1234",
            "m.toml:4, drinks[0].pin: found a value that is not shown, because it may be secret; expected a string."
            " Ask the bar.",
        ),
        (
            '[[drinks]]\nkind = "cofee"',
            "m.toml:2, drinks[0].kind: found 'cofee'; expected one of 'coffee', 'tea'. Did you mean 'coffee'?"
            " Ask the bar.",
        ),
        (
            "drinks = []\nsize = 'larg'",
            "m.toml:2, size: found 'larg'; expected one of 'small', 'large'. Did you mean 'large'?"
            " `menu --example` prints one.",
        ),
        (
            "drinks = []\ntip = {a = 'b'}",
            "m.toml:2, tip: found {'a': 'b'}; expected a number, or a table, each value a number."
            " `menu --example` prints one.",
        ),
        (
            f"drinks = []\nsize = {list(range(60))}",
            "m.toml:2, size: found list of 230 characters; expected one of 'small', 'large'."
            " `menu --example` prints one.",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_line_found_expected_and_the_next_step(text: str, said: str) -> None:
    with pytest.raises(RlscopeError) as raised:
        parse_source(text, "m.toml", KIND).validated(MENU)
    assert str(raised.value) == said


def test_what_fits_is_returned_as_its_model() -> None:
    source = parse_source(DRINKS + "shots = 2", "m.toml", KIND)
    assert source.validated(MENU) == Menu([Coffee("coffee", 2)])


def test_a_schema_is_described_without_the_width_of_a_column() -> None:
    wide = json_schema(TypeAdapter(Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]))
    assert describe(wide, wide) == "a whole number"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "is_yaml", "why"),
    [
        (BOMB, True, "more than 100,000 values with its aliases written out"),
        ("a: &a [*a]", True, "more than 100,000 values with its aliases written out"),
        ("[" * 20_000, True, "nested too deep"),
        ("a = " + "[" * 20_000, False, "nested too deep"),
    ],
    ids=["bomb", "a list that holds itself", "YAML of brackets", "TOML of brackets"],
)
def test_a_file_that_would_fill_the_memory_or_the_stack_is_refused(text: str, is_yaml: bool, why: str) -> None:
    with pytest.raises(RlscopeError, match=why):
        parse_source(text, "menu", KIND, is_yaml=is_yaml)
