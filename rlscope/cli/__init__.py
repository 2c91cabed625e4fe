"""The command: parse, call the front door, print. Data goes to stdout, everything else to stderr.

One module a subcommand or two; what is slow to import is imported when the subcommand runs.
"""

import sys
from collections.abc import Callable
from textwrap import TextWrapper
from typing import Final

from rich.console import Console

from rlscope.cli import analyze, check, import_, plan, query, rules, watch, what_if
from rlscope.cli.app import app
from rlscope.errors import ArgumentError, RlscopeError, RuleError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: Final[tuple[Callable[..., None], ...]] = (
    analyze.analyze,
    analyze.report,
    import_.import_,
    what_if.what_if,
    plan.plan,
    check.check,
    watch.watch,
    rules.rules,
    query.query,
    query.queries,
)
"""In the order of the help; `what_if` is `rlscope what-if`, and `import_` is `rlscope import`."""
for _command in COMMANDS:
    app.command(_command.__name__.strip("_").replace("_", "-"))(_command)


def main() -> None:
    """Run the command; what the user can fix becomes a message and exit code 1, or 2 for what is a matter of usage."""
    try:
        app()
    except RlscopeError as error:
        _complain(error)
        sys.exit(2 if isinstance(error, RuleError | ArgumentError) else 1)


def _complain(error: RlscopeError) -> None:
    """On a terminal lines end between words, and a path stays whole; elsewhere they are left as they are."""
    console, text = Console(stderr=True), f"rlscope: {error}"
    if console.is_terminal:
        # Line by line: below a SELECT that is refused, a mark points at the place.
        between_words = TextWrapper(console.width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(map(between_words.fill, text.splitlines()))
    console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)
