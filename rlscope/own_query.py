"""One question of the user's to one run: by its name, or as SQL of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from rlscope.errors import QueryError
from rlscope.query import Argument, ask, ask_own, standard_arguments
from rlscope.query_files import find_question
from rlscope.store import open_run


def answer(folder: Path, name: str | None, file: Path | None, arguments: Mapping[str, Argument]) -> pl.DataFrame:
    """The table that answers the question `name`, or the SELECT in `file`.

    arguments replace those that every question is asked with. Raises RunFolderError, QueryError or UnreadableDataError.
    """
    if name is not None:
        find_question(name)
    with open_run(folder) as run:
        if name is None:
            assert file is not None
            return ask_own(run, file.read_text(encoding="utf-8"))
        return ask(run, name, standard_arguments(run) | dict(arguments))


def parse_arguments(pairs: Sequence[str]) -> dict[str, Argument]:
    """NAME=VALUE pairs; whole numbers, true and false are read as such. Raises QueryError for anything else."""
    arguments: dict[str, Argument] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise QueryError.of(
                f"--arg {pair}", found="no NAME=VALUE", expected="--arg bucket_ns=1000000000", next_step="Write it so."
            )
        arguments[name] = _typed(value)
    return arguments


def _typed(value: str) -> Argument:
    if value in ("true", "false"):
        return value == "true"
    try:
        return int(value)
    except ValueError:
        return value
