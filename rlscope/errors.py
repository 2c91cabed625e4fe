"""Every error that a user can cause, as one tree: `except rlscope.RlscopeError` catches them all.

RlscopeError
├── RunFolderError            the folder is not a run, or a run that this version cannot read
├── ImportFileError           a file that no importer can read, or that several could
├── UnreadableDataError       a file of the run broke while it was being read
│   └── VanishedFileError     a file was removed meanwhile, as by the recorder that merges its files
├── LimitError                a run whose rows need more memory or temporary disk space than they may take
├── QueryError                a question that does not exist, an argument it does not take, or SQL that is refused
├── RuleError                 a file of rules, its receivers, or a rule of the command line that cannot be used
├── SecretError               a secret that is not where the rules say
├── AnalysisError             the run is readable but cannot be analysed, or not compared with another
├── OutputError               a file that cannot be written
└── ArgumentError             an argument that is out of its range (a ValueError too)
    └── ImpossibleChangeError   a what-if that no layout of the run's GPUs can answer

Each message names the thing, what was found, what was expected and the next step. A plan that cannot be read, and a
library or a font that is not installed, are a plain RlscopeError.

Exceptions elsewhere are not for users: those of `model` and `analysis` (UnobservableError, UncalibratableError,
UnplannableError, UncountableError, NeverTrains) say what the model lacks and become a reason or one of these errors;
DeliveryError becomes a line of the watch. Every other exception is a bug of ours and keeps its traceback.
"""

from pathlib import Path
from typing import Final, NamedTuple, Self

_LONGEST_FOUND: Final = 2_000
"""Characters of a value that a message repeats."""
_NO_FILE: Final = ("No such file or directory", "No files found that match")
"""How DuckDB words that a file is gone."""


class RlscopeError(Exception):
    """The base of every error that a user can cause, and fix."""

    @classmethod
    def of(cls, thing: str | Path, *, found: str, expected: str, next_step: str) -> Self:
        """Build the message in its one shape."""
        found = found if len(found) <= _LONGEST_FOUND else f"{found[:_LONGEST_FOUND]}…"
        return cls(f"{thing}: found {found}; expected {expected}. {next_step}")


class RunFolderError(RlscopeError):
    """The folder is not a run, or one that this version cannot read."""


class UnreadableDataError(RlscopeError):
    """A file of the run broke while it was being read."""

    @classmethod
    def while_reading(cls, folder: Path, error: Exception) -> "UnreadableDataError":
        """What an error of DuckDB means that is about the files of a run."""
        if any(said in str(error) for said in _NO_FILE):
            return VanishedFileError.of_run(folder)
        return cls(f"{folder}: a file broke while it was read: {error}")


class VanishedFileError(UnreadableDataError):
    """A file of the run was removed while it was being read, as by the recorder that merges its files."""

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        """Build the error for the run in a folder."""
        return cls.of(
            folder,
            found="a file that was removed while it was read, as the recorder of a run in progress does when it merges",
            expected="files that stay until all are read",
            next_step="Call it again, or read a copy: `rlscope compact PATH --out COPY`.",
        )


class LimitError(RlscopeError):
    """The rows of a run need more memory or temporary disk space than they may take."""


class ImportFileError(RlscopeError):
    """A file or folder that is no run and that no importer can read, or that several could."""


class QueryError(RlscopeError):
    """A question that does not exist, an argument that it does not take, or SQL that is refused."""


class RuleError(RlscopeError):
    """A file of rules, or a rule of the command line, that cannot be used."""


class SecretError(RlscopeError):
    """A secret that is not where the rules say. The message names the place, never the secret."""


class AnalysisError(RlscopeError):
    """The run is readable but cannot be analysed, or not compared with another."""


class OutputError(RlscopeError):
    """A file that cannot be written."""


class ArgumentError(RlscopeError, ValueError):
    """An argument that is out of its range."""


class ImpossibleChangeError(ArgumentError):
    """A what-if that names values, or GPUs, that the run cannot have. The message says which it can."""


class Limits(NamedTuple):
    """The least and the most that an argument may be: of whole numbers where the least is one."""

    least: float
    most: float | None = None

    def check(self, name: str, value: object, kind: type[ArgumentError] = ArgumentError) -> None:
        """Raise an error of this kind where the value is not a number within the limits."""
        is_whole = isinstance(self.least, int)
        is_number = isinstance(value, int) or (isinstance(value, float) and not is_whole)
        most = float("inf") if self.most is None else self.most
        if not is_number or isinstance(value, bool) or not self.least <= value <= most:  # type: ignore[operator]
            expected = f"a {'whole ' if is_whole else ''}number, {self}"
            raise kind.of(name, found=repr(value), expected=expected, next_step="Leave it out for the default.")

    def __str__(self) -> str:
        return f"at least {self.least:g}" if self.most is None else f"{self.least:g} to {self.most:,g}"
