"""The command line: parse the arguments, call the Python interface, print. Data goes to stdout, all else to stderr.

Each module holds one or two subcommands. Slow imports happen when the subcommand runs.
"""

import gc
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from rich.console import Console

from rlscope.cli import (
    analyze,
    check,
    compare,
    doctor,
    export,
    import_,
    mcp,
    plan,
    push,
    query,
    rules,
    runs,
    watch,
    what_if,
)
from rlscope.cli.app import app, folded
from rlscope.errors import ArgumentError, RlscopeError, RuleError
from rlscope.text_out import for_terminal, readable_on

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: Final[tuple[Callable[..., None], ...]] = (
    analyze.analyze,
    import_.import_,
    doctor.doctor,
    what_if.what_if,
    plan.plan,
    compare.compare,
    runs.list_,
    check.check,
    watch.watch,
    rules.rules,
    query.query,
    query.queries,
    export.export,
    push.push,
    mcp.mcp,
)
"""The subcommands in the order of the help. `what_if` is `rlscope what-if`, and `import_` is `rlscope import`."""
_RARE_COLLECTIONS: Final = (50_000, 20, 50)
"""Thresholds of the garbage collector. With Python's own, it looks through all imported objects again and again, for a
twentieth of the time of a short analysis."""


def _help_of(command: Callable[..., None]) -> str:
    """Return the docstring with each paragraph on one line: typer keeps the line breaks of all but the first."""
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in (inspect.getdoc(command) or "").split("\n\n"))


for _command in COMMANDS:
    app.command(_command.__name__.strip("_").replace("_", "-"), help=_help_of(_command))(_command)


def main() -> None:
    """Run the command. An error that the user can fix becomes a message and exit code 1, or 2 if it is a usage error.

    Ctrl-C and SIGTERM end the command, with the exit code that a shell reports for them, and remove its temporary
    files.
    """
    ended_by: list[int] = []

    def end(number: int, _frame: object) -> NoReturn:
        ended_by.append(number)
        sys.exit(128 + number)

    gc.set_threshold(*_RARE_COLLECTIONS)
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    readable_on(sys.stdout, sys.stderr)
    try:
        app()
    except RlscopeError as error:
        # DuckDB makes an error of its own of what a handler raises while it reads rows from Python.
        if ended_by:
            sys.exit(128 + ended_by[0])
        _complain(error)
        sys.exit(2 if isinstance(error, RuleError | ArgumentError) else 1)
    finally:
        _exit_if_stuck()
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_if_stuck() -> None:
    """Exit at once if a SELECT does not react to its interruption, because the interpreter would wait for it."""
    execution = sys.modules.get("rlscope.trace.execution")
    if execution is None or not execution.is_anything_stuck():
        return
    error = sys.exc_info()[1]
    code = error.code if isinstance(error, SystemExit) else None
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _complain(error: RlscopeError) -> None:
    """Print an error. On a terminal, long lines are wrapped between words, so that paths stay whole."""
    console, text = Console(stderr=True), for_terminal(f"rlscope: {error}")
    # Each line is wrapped alone: below a rejected SELECT, a mark points at the position of the error.
    text = folded(text, console, hanging=0)
    console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)
