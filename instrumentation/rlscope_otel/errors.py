"""Errors that `start_run` raises. After the start nothing raises: see `faults.py`."""

from collections.abc import Iterable


class SetupError(ValueError):
    """`start_run` got a setting or a folder that it cannot use. Raised only at the start."""

    @classmethod
    def unknown_value(cls, what: str, found: object, expected: Iterable[str], next_step: str) -> "SetupError":
        """A value that is not one of those allowed, or has the wrong form."""
        return cls(f"{what} is {found!r}; expected {', '.join(expected)}. {next_step}")

    @classmethod
    def foreign_folder(cls, path: object, found: str, expected: str) -> "SetupError":
        """A folder that already holds something other than this run."""
        return cls(f"{path} holds {found}; expected {expected}. Use a separate folder for each run.")
