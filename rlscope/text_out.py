"""Output of text: the only place where text leaves the program.

It replaces characters that a format cannot hold or would interpret as a command. Names come from runs, rules and
frameworks, so anybody may have written them. Unprintable characters, such as escape sequences, direction marks, halves
of surrogate pairs and noncharacters, become U+FFFD.
"""

import io
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TextIO

from rlscope.errors import OutputError

LONGEST_TEXT: Final = 2_000
"""Maximum characters of a name, a reason or a setting that reports print in full."""
_START: Final = 200
"""Characters that reports print of a longer text."""
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_UNSAFE: Final = re.compile(
    # C0 except tab and newline, DEL and C1; direction marks and invisible marks; surrogates; noncharacters.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_ESCAPED_UNSAFE: Final = re.compile(r"\\u(?:00[01789][0-9a-f]|20[026][0-9a-f]|fdd|fde|fff|d[89a-f])|\\[bfr]")
"""Escapes that may stand for one of these characters in ASCII JSON."""
_FORMULA: Final = ("=", "+", "-", "@", "\t")
"""First characters that make a spreadsheet evaluate a cell as a formula."""
_MARKUP: Final = re.compile(r"([\\`*_\[\]|~#])")
_ZERO_WIDTH_SPACE: Final = "\u200b"


def shortened(text: str) -> str:
    """Return the text, or for a long text its start, its length and a checksum that tells it from other long texts."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:_START]}… ({len(text):,} characters, {zlib.crc32(as_bytes(text)):08x})"


def one_line(text: str) -> str:
    """Return the text on one line, with unprintable characters replaced."""
    return "".join(char if char.isprintable() else _REPLACEMENT for char in text)


def for_terminal(text: str) -> str:
    """Return text that is safe in a terminal, a log, a text file or, once escaped, in HTML. Newlines and tabs stay."""
    return _UNSAFE.sub(_REPLACEMENT, text)


def for_csv(text: str) -> str:
    """Return a cell of text that a spreadsheet shows and does not evaluate."""
    safe = for_terminal(text)
    return f"'{safe}" if safe.startswith(_FORMULA) else safe


def for_markdown(text: str) -> str:
    """Return the text on one line, with Markdown, HTML, mentions and links escaped."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    plain = _MARKUP.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return plain.replace("@", "@" + _ZERO_WIDTH_SPACE).replace("://", ":" + _ZERO_WIDTH_SPACE + "//")


def as_json(document: Any, *, indent: int | None = None) -> str:  # noqa: ANN401  # whatever JSON can hold
    """Return a document as ASCII JSON, with unprintable characters replaced in keys and texts.

    Raises ValueError if a number is not finite.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, indent=indent, allow_nan=False, separators=separators)
    if _ESCAPED_UNSAFE.search(text) is None:
        return text
    return json.dumps(cleaned(document), indent=indent, allow_nan=False, separators=separators)


def escaped_json(text: str) -> str:
    """Return foreign JSON with each unprintable character as an escape, which changes no value."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def cleaned(value: Any, clean: Callable[[str], str] = for_terminal) -> Any:  # noqa: ANN401  # whatever JSON can hold
    """Return a copy of a JSON document with every text and key cleaned, by default for a terminal."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name) if isinstance(name, str) else name: cleaned(item, clean) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item, clean) for item in value]
    return value


def as_bytes(text: str) -> bytes:
    """Return the text in UTF-8, with a question mark for each character that cannot be encoded."""
    return text.encode("utf-8", "replace")


def readable_on(*streams: TextIO) -> None:
    """Make streams with a narrow encoding, such as ASCII, write a question mark for a character that they lack."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def encoded_for(stream: TextIO, text: str) -> bytes:
    """Return text for people in the encoding of a stream, or in UTF-8 if the stream does not state one."""
    return text.encode(getattr(stream, "encoding", None) or "utf-8", "replace")


def check_output(path: Path) -> Path:
    """Return the path if a file can be written there. Raises OutputError otherwise.

    Long tasks call this first, so that a wrong folder fails before the work and not after it.
    """
    parent = path.parent
    if path.is_dir():
        raise _cannot_write(path, "a folder", "the path of a file")
    if not parent.is_dir():
        raise _cannot_write(path, f"no folder {for_terminal(str(parent))}", "a file in a folder that exists")
    # A file is replaced, which needs a writable folder. A device or a pipe is opened and written to.
    is_special = path.exists() and not path.is_file()
    if not os.access(path if is_special else parent, os.W_OK):
        raise _cannot_write(path, "no permission to write there", "a file that can be written")
    return path


def write_file(path: Path, content: bytes) -> Path:
    """Write a file and return its path. Raises OutputError if it cannot be written; see `writing`."""
    with writing(path) as file:
        file.write(content)
    return path


@contextmanager
def writing(path: Path) -> Generator[IO[bytes]]:
    """Open a file to write. Raises OutputError if it cannot be written.

    The content goes to a temporary file in the same folder, which replaces the path when it is complete. A link is
    replaced, not followed. A device or a pipe is written to directly.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as file:
                yield file
            return
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as file:
                yield file
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _cannot_write(path, error.strerror or str(error), "a file that can be written") from error


def _cannot_write(path: Path, found: str, expected: str) -> OutputError:
    return OutputError.of(path, found=found, expected=expected, next_step="Use another path.")
