"""One word for a thing: public names, options, settings and JSON keys use no word that the glossary rejects."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer.main

import rlscope
from docs.generate import DOCUMENTS, published_schema
from rlscope.changes import CHANGEABLE
from rlscope.cli import app
from rlscope.planning.schema import PlanFile
from rlscope.trace.config import RunConfig

GLOSSARY = (Path(__file__).parent.parent / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([a-z][^|]*) \| ([^|]+) \|([^|]*)\|$", GLOSSARY, re.MULTILINE)
REJECTED = {
    word.strip().replace(" ", "_").replace("-", "_"): row[0]
    for row in ROWS
    if row[0] != "word"
    for word in row[2].split(",")
    if word.strip()
}


def json_keys() -> Iterator[str]:
    for kind, command in DOCUMENTS.values():
        document = published_schema(kind, "keys", command)
        for part in (document, *document["$defs"].values()):
            yield from part.get("properties", ())


def options() -> Iterator[str]:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        yield name
        yield from (option.strip("-") for parameter in command.params for option in parameter.opts)


def plan_keys() -> Iterator[str]:
    for name, kind in get_type_hints(PlanFile).items():
        yield name
        section = next((each for each in (kind, *get_args(kind)) if hasattr(each, "__dataclass_fields__")), None)
        yield from (field.name for field in fields(section)) if section else ()


NAMES = {
    "Python": lambda: iter(rlscope.__all__),
    "what-if": lambda: iter(CHANGEABLE),
    "options": options,
    "run config": lambda: (field.name for field in fields(RunConfig)),
    "plan": plan_keys,
    "JSON": json_keys,
}


def test_the_glossary_has_about_fifty_words_and_rejects_some() -> None:
    assert 50 <= len(ROWS) <= 80 and len(REJECTED) >= 15


@pytest.mark.parametrize("where", NAMES)
def test_no_public_name_is_a_word_that_the_glossary_rejects(where: str) -> None:
    names = set(NAMES[where]())
    assert names
    wrong = {
        name: REJECTED[word]
        for name in names
        for word in REJECTED
        if re.search(rf"(?:^|_){word}(?:s|_|$)", re.sub(r"(?<=[a-z])(?=[A-Z])|-", "_", name).lower())
    }
    assert wrong == {}
