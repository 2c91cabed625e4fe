"""What may go wrong before a run records. After that nothing raises: see `faults.py`."""

from collections.abc import Iterable


class SetupError(ValueError):
    """`start_run` was given something it cannot record under. It is raised at start only, never later."""

    @classmethod
    def unknown_value(cls, what: str, found: object, expected: Iterable[str], next_step: str) -> "SetupError":
        """A value outside its closed set, or not of its form."""
        return cls(f"{what} is {found!r}; expected {', '.join(expected)}. {next_step}")

    @classmethod
    def foreign_folder(cls, path: object, found: str, expected: str) -> "SetupError":
        """A folder that already holds something else than this run."""
        return cls(f"{path} holds {found}; expected {expected}. Give every run a folder of its own.")
