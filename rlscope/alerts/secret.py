"""Where a secret comes from: the environment or a file, asked for when it is needed and never kept.

Nothing here puts a secret into text: an error names the variable or the file, and so does `str()` of a source.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlscope.errors import RlscopeError


class SecretError(RlscopeError):
    """A secret that is not where the rules say."""


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """The value of a variable."""

    variable: str

    def reveal(self, environment: Mapping[str, str] = os.environ) -> str:
        """The secret. Raises SecretError when the variable is not set, or empty."""
        value = environment.get(self.variable, "").strip()
        if not value:
            raise SecretError.of(
                f"${self.variable}", found="nothing", expected="the secret", next_step="Set it where the watch runs."
            )
        return value

    def __str__(self) -> str:
        return f"${self.variable}"


@dataclass(frozen=True, slots=True)
class FromFile:
    """The text of a file, without the white space around it; read anew each time, so that it can be rotated."""

    path: Path

    def reveal(self) -> str:
        """The secret. Raises SecretError when the file cannot be read, or is empty."""
        try:
            value = self.path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            found = (error.strerror or "an error") if isinstance(error, OSError) else "no text"
            raise self._refusal(found) from None
        if not value:
            raise self._refusal("an empty file")
        return value

    def __str__(self) -> str:
        return str(self.path)

    def _refusal(self, found: str) -> SecretError:
        return SecretError.of(self.path, found=found, expected="a secret", next_step="Write it there, readable to you.")


@dataclass(frozen=True, slots=True)
class InTheOpen:
    """A value that the rules hold themselves, because it is no secret."""

    value: str = field(repr=False)

    def reveal(self) -> str:
        """The value."""
        return self.value

    def __str__(self) -> str:
        # What a person took for public may still be a secret.
        return "an address in the rules"


Source = FromEnvironment | FromFile | InTheOpen
