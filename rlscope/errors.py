"""All errors that a user can cause, in one hierarchy: `except rlscope.RlscopeError` catches every one.

RlscopeError
├── RunFolderError            the folder is not a run, or this version cannot read it
├── ImportFileError           no importer can read the file, or several could
├── UnreadableDataError       a file of the run is damaged
├── LimitError                the rows of the run need more memory or temporary disk space than allowed
├── QueryError                the query or its argument does not exist, or the SQL is rejected
├── RuleError                 a rules file, its receivers, or a rule of the command line cannot be used
├── SecretError               a secret is not where the rules say
├── AnalysisError             the run cannot be analyzed, or cannot be compared with another run
├── OutputError               a file cannot be written
└── ArgumentError             an argument is out of range (also a ValueError)
    └── ImpossibleChangeError   a what-if asks for values or GPUs that the run cannot have

Each message names the object, what was found, what was expected and the next step. A plan that cannot be read, and a
missing library or font, raise a plain RlscopeError.

Other exceptions are internal. Those of `model` and `analysis` (UnobservableError, UncalibratableError,
UnplannableError, UncountableError, NeverTrains) name what the model lacks; they become a reason in the result or one of
these errors. DeliveryError becomes a line of the watch. Any other exception is a bug and keeps its traceback.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple, Self

_LONGEST_FOUND: Final = 2_000
"""Maximum characters of a value that a message repeats."""


class RlscopeError(Exception):
    """Base class of all errors that a user can cause and fix."""

    @classmethod
    def of(cls, thing: str | Path, *, found: str, expected: str, next_step: str) -> Self:
        """Build the error, with a message in the common form."""
        found = found if len(found) <= _LONGEST_FOUND else f"{found[:_LONGEST_FOUND]}…"
        return cls(f"{thing}: found {found}; expected {expected}. {next_step}")


class RunFolderError(RlscopeError):
    """The folder is not a run, or this version cannot read it."""


class UnreadableDataError(RlscopeError):
    """A file of the run is damaged."""

    @classmethod
    def while_reading(cls, folder: Path, error: Exception) -> "UnreadableDataError":
        """Build the error for an exception of DuckDB on reading the files of a run."""
        return cls(f"{folder}: a file could not be read: {error}")


class LimitError(RlscopeError):
    """The rows of a run need more memory or temporary disk space than allowed."""


class ImportFileError(RlscopeError):
    """The file or folder is not a run, and no importer can read it, or several could."""


class QueryError(RlscopeError):
    """The query or its argument does not exist, or the SQL is rejected."""


class RuleError(RlscopeError):
    """A rules file, or a rule of the command line, cannot be used."""


class SecretError(RlscopeError):
    """A secret is not where the rules say. The message names the place, never the secret."""


class AnalysisError(RlscopeError):
    """The run can be read but not analyzed, or not compared with another run."""


class OutputError(RlscopeError):
    """A file cannot be written."""


class ArgumentError(RlscopeError, ValueError):
    """An argument is out of range."""


class ImpossibleChangeError(ArgumentError):
    """A what-if asks for values or GPUs that the run cannot have. The message lists the possible ones."""


class Bounds(NamedTuple):
    """Minimum and maximum of an argument. It must be a whole number if the minimum is an int."""

    least: float
    most: float | None = None

    def check(self, name: str, value: object, kind: type[ArgumentError] = ArgumentError) -> None:
        """Raise an error of the given kind if the value is not a number within the limits."""
        is_whole = isinstance(self.least, int)
        is_number = isinstance(value, int) or (isinstance(value, float) and not is_whole)
        most = float("inf") if self.most is None else self.most
        if not is_number or isinstance(value, bool) or not self.least <= value <= most:  # type: ignore[operator]
            expected = f"a {'whole ' if is_whole else ''}number, {self}"
            raise kind.of(name, found=repr(value), expected=expected, next_step="Leave it out for the default.")

    def __str__(self) -> str:
        return f"at least {self.least:g}" if self.most is None else f"{self.least:g} to {self.most:,g}"


def check_one_of(name: str, value: str, choices: Collection[str]) -> None:
    """Raise an ArgumentError that lists the choices if the value is none of them."""
    if value not in choices:
        raise ArgumentError.of(
            name, found=repr(value), expected="one of " + ", ".join(choices), next_step="Use one of them."
        )
