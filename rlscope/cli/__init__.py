"""The command line: parse the arguments, call the Python interface, print. Data goes to stdout, all else to stderr.

Each module holds one or two subcommands. Slow imports happen when the subcommand runs.
"""

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
for _command in COMMANDS:
    app.command(_command.__name__.strip("_").replace("_", "-"))(_command)


def main() -> None:
    """Run the command. An error that the user can fix becomes a message and exit code 1, or 2 if it is a usage error.

    SIGTERM ends the command as Ctrl-C does and removes its temporary files.
    """
    before = signal.signal(signal.SIGTERM, _end)
    readable_on(sys.stdout, sys.stderr)
    try:
        app()
    except RlscopeError as error:
        _complain(error)
        sys.exit(2 if isinstance(error, RuleError | ArgumentError) else 1)
    finally:
        _exit_if_stuck()
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: object) -> NoReturn:
    """Exit with the code that a shell reports for a process that a signal ended."""
    sys.exit(128 + number)


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
