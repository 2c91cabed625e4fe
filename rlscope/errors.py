"""Everything that can be wrong with what the user gave us.

RlscopeError
├── RunFolderError      the folder is not a run, or a run that this version cannot read
├── UnreadableDataError a file of the run broke while it was being read
├── QueryError          a question that does not exist, or SQL that we do not run
├── RuleError           a rule that says what we do not know
└── AnalysisError       the run is readable but cannot be analysed

Each message names the thing, what was found, what was expected and the next step.
Every other exception is a bug of ours and keeps its traceback.
"""

from pathlib import Path
from typing import Self


class RlscopeError(Exception):
    """The base of every error that a user can mend."""

    @classmethod
    def of(cls, thing: str | Path, *, found: str, expected: str, next_step: str) -> Self:
        """Build the message in its one shape."""
        return cls(f"{thing}: found {found}; expected {expected}. {next_step}")


class RunFolderError(RlscopeError):
    """The folder is not a run, or one that this version cannot read."""


class UnreadableDataError(RlscopeError):
    """A file of the run broke while it was being read."""


class QueryError(RlscopeError):
    """A question that does not exist, or SQL that we do not run."""


class RuleError(RlscopeError):
    """A file of rules, or a rule of the command line, that says what we do not know."""


class AnalysisError(RlscopeError):
    """The run is readable but cannot be analysed."""
