"""The command: parse, call one public function, print. Data goes to stdout, everything else to stderr.

One module a subcommand, imported here so that it registers; what is slow to import is imported when it is called.
"""

import sys
from textwrap import TextWrapper

from rich.console import Console

from rlscope.cli import analyze, check, plan, query, rules, watch, what_if
from rlscope.cli.app import app
from rlscope.errors import RlscopeError, RuleError

__all__ = ["analyze", "app", "check", "main", "plan", "query", "rules", "watch", "what_if"]


def main() -> None:
    """Run the command; what the user can mend becomes a message and exit code 1, or 2 for rules: they are usage."""
    try:
        app()
    except RlscopeError as error:
        _complain(error)
        sys.exit(2 if isinstance(error, RuleError) else 1)


def _complain(error: RlscopeError) -> None:
    """On a terminal lines end between words, and a path stays whole; elsewhere they are left as they are."""
    console, text = Console(stderr=True), f"rlscope: {error}"
    if console.is_terminal:
        # Line by line: below a SELECT that is refused, a mark points at the place.
        between_words = TextWrapper(console.width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(map(between_words.fill, text.splitlines()))
    console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)
