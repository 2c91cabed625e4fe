"""The one place where text leaves the program: what each format cannot hold, or would take for a command, is replaced.

Names come from runs, rules and frameworks, and anybody may have written them. What is no printable character, such as
escape sequences, marks that turn the direction of writing, halves of surrogate pairs and noncharacters, becomes U+FFFD.
"""

import codecs
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
"""Characters of a name, a reason or a setting that reports repeat."""
_START: Final = 200
"""Characters of a longer one that they repeat."""
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_UNSAFE: Final = re.compile(
    # C0 but for tab and newline, DEL and C1; marks of direction and invisible marks; surrogates; noncharacters.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_ESCAPED_UNSAFE: Final = re.compile(r"\\u(?:00[01789][0-9a-f]|20[026][0-9a-f]|fdd|fde|fff|d[89a-f])|\\[bfr]")
"""What may stand for one of them in JSON of ASCII characters alone."""
_FORMULA: Final = ("=", "+", "-", "@", "\t")
"""What a spreadsheet takes a cell for a formula by."""
_MARKUP: Final = re.compile(r"([\\`*_\[\]|~#])")
_ZERO_WIDTH_SPACE: Final = "\u200b"
_READABLE: Final = "rlscope.readable"
"""The name of the codec error handler that writes what a terminal lacks."""
_STAND_INS: Final = str.maketrans(
    {
        **dict.fromkeys("█▉▊▋", "#"),
        **dict.fromkeys("▌▍▎▏", "|"),
        **dict.fromkeys("─━═╌┄", "-"),
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼╔╗╚╝┏┓┗┛┡┩╇╞╡╪", "+"),
        **dict.fromkeys("–—−‐‑", "-"),
        **dict.fromkeys("“”„", '"'),
        **dict.fromkeys("‘’", "'"),
        **dict.fromkeys("•▪◆●", "*"),
        "▒": "=",
        "░": ".",
        "·": "-",
        "→": "->",
        "←": "<-",
        "×": "x",
        "±": "+/-",
        "≈": "~",
        "≤": "<=",
        "≥": ">=",
        "…": "...",
        "µ": "u",
        "μ": "u",
        "°": "o",
        "✓": "+",
        "✗": "-",
        "\xa0": " ",
        "\u202f": " ",
        _ZERO_WIDTH_SPACE: "",
    }
)
"""Of what bars, boxes and tables are made of, one character for one, so that they stay aligned."""


def shortened(text: str) -> str:
    """Return the text, or of a long one its start, its length and a checksum, by which two long texts still differ."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:_START]}… ({len(text):,} characters, {zlib.crc32(as_bytes(text)):08x})"


def one_line(text: str) -> str:
    """The text on one line, each character that cannot be printed as a replacement character."""
    return "".join(char if char.isprintable() else _REPLACEMENT for char in text)


def for_terminal(text: str) -> str:
    """Text that a terminal, a log or a text file shows as it is: lines and tabs stay."""
    return _UNSAFE.sub(_REPLACEMENT, text)


def for_csv(text: str) -> str:
    """A cell of text: a spreadsheet shows it, and does not run it."""
    safe = for_terminal(text)
    return f"'{safe}" if safe.startswith(_FORMULA) else safe


def for_xml(text: str) -> str:
    """Text of an element or attribute, before it is escaped: only characters that XML 1.0 has."""
    return for_terminal(text)


def for_html(text: str) -> str:
    """Text of a page, before it is escaped."""
    return for_terminal(text)


def for_markdown(text: str) -> str:
    """Text on one line, with Markdown, HTML, mentions and links escaped."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    plain = _MARKUP.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return plain.replace("@", "@" + _ZERO_WIDTH_SPACE).replace("://", ":" + _ZERO_WIDTH_SPACE + "//")


def for_github(text: str, *, is_property: bool = False) -> str:
    """A part of a workflow command of GitHub Actions: a newline or a comma in it ends nothing."""
    marks = [("%", "%25"), ("\n", "%0A")] + ([(":", "%3A"), (",", "%2C")] if is_property else [])
    safe = for_terminal(text)
    for mark, escape in marks:
        safe = safe.replace(mark, escape)
    return safe


def as_json(document: Any, *, indent: int | None = None) -> str:  # noqa: ANN401  # whatever JSON can hold
    """A document as JSON of ASCII characters alone; keys and texts lose what cannot be printed.

    Raises ValueError for a number that JSON does not have.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, indent=indent, allow_nan=False, separators=separators)
    if _ESCAPED_UNSAFE.search(text) is None:
        return text
    return json.dumps(cleaned(document), indent=indent, allow_nan=False, separators=separators)


def escaped_json(text: str) -> str:
    """JSON that others wrote, with each character that cannot be printed as an escape: no value changes."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cleaned(value: Any, clean: Callable[[str], str] = for_terminal) -> Any:  # noqa: ANN401  # whatever JSON can hold
    """The same document with every text and every key cleaned: by default, as a terminal may show it."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(name) if isinstance(name, str) else name: cleaned(each, clean) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(each, clean) for each in value]
    return value


def as_bytes(text: str) -> bytes:
    """UTF-8, whatever the text holds."""
    return text.encode("utf-8", "replace")


def readable_on(*streams: TextIO) -> None:
    """Make streams of a narrow encoding, such as ASCII or Latin-1, write a stand-in for what they cannot hold."""
    codecs.register_error(_READABLE, _stand_in)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_READABLE)


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """What is written in place of the characters that cannot be encoded, and where to go on: a codec error handler."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_STAND_INS)
    # Braille is what a spinner turns; anything else is a name, of which every character counts.
    shown = "".join(char if char.isascii() else "." if "\u2800" <= char <= "\u28ff" else "?" for char in text)
    return shown, error.end


def encoded_for(stream: TextIO, text: str) -> bytes:
    """Text for people as this stream's terminal or pipe reads it; UTF-8 where the stream does not say."""
    codecs.register_error(_READABLE, _stand_in)
    return text.encode(getattr(stream, "encoding", None) or "utf-8", _READABLE)


def check_output(path: Path) -> Path:
    """The path, where a file can be written there. Raises OutputError.

    For what takes a while: a wrong folder is an error before the work, not after it.
    """
    parent = path.parent
    if path.is_dir():
        raise _cannot_write(path, "a folder", "the name of a file")
    if not parent.is_dir():
        raise _cannot_write(path, f"no folder {for_terminal(str(parent))}", "a file in a folder that exists")
    # A file is replaced by another one, which its folder must permit; a device or a pipe is written to.
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

    It is written beside its name and takes its place whole: a link of that name is replaced, not followed. Only a
    device or a pipe is written to.
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
    return OutputError.of(path, found=found, expected=expected, next_step="Name another one.")
