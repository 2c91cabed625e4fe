"""Work on the files of a run in pieces, which may be done by processes on other machines that see the same folder.

What is worked on, and what comes of it, can be pickled, and the work is a function of a module. One process does a
piece after the other (`here`); `rlscope.cluster` has the other way.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
_PIECE_FILES: Final = 500
"""At about 0.3 ms each for a footer: long enough that sending the piece costs nothing beside it."""
_PIECE_BYTES: Final = 128 * 10**6
"""Of files that are read whole: a tenth of a second."""


class Distribute(Protocol):
    """Does each piece of some work on the run in a folder."""

    def __call__(
        self, folder: Path, work: Callable[[_Piece], _Result], pieces: Sequence[_Piece], *, again: bool = True
    ) -> Iterator[_Result | None]:
        """What comes of each piece, in their order; None where the process that did it ended before it was done.

        again: whether a piece may be done again by another process then. Raises what the work raises, once nobody works
        on any piece, and RlscopeError where the work cannot be done.
        """
        ...


def here(
    folder: Path, work: Callable[[_Piece], _Result], pieces: Sequence[_Piece], *, again: bool = True
) -> Iterator[_Result | None]:
    """One piece after the other, in this process."""
    return map(work, pieces)


def of_files(
    folder: Path,
    work: Callable[[Sequence[Path]], list[_Result]],
    paths: Sequence[Path],
    distribute: Distribute,
    sizes_bytes: Sequence[int] = (),
) -> list[_Result]:
    """What the work finds of each of many files. sizes_bytes: of each, for work that reads all of them.

    A piece whose processes ended is done here. Raises what the work raises.
    """
    if distribute is here:
        return work(paths)
    pieces = list(_pieces(paths, sizes_bytes))
    if len(pieces) < 2:
        return work(paths)
    found: list[_Result] = []
    for piece, results in zip(pieces, distribute(folder, work, pieces), strict=True):
        found += work(piece) if results is None else results
    return found


def _pieces(paths: Sequence[Path], sizes_bytes: Sequence[int]) -> Iterator[list[Path]]:
    piece: list[Path] = []
    held_bytes = 0
    for place, path in enumerate(paths):
        piece.append(path)
        held_bytes += sizes_bytes[place] if sizes_bytes else 0
        if len(piece) >= _PIECE_FILES or held_bytes >= _PIECE_BYTES:
            yield piece
            piece, held_bytes = [], 0
    if piece:
        yield piece
