"""Finds habits of bad prose in docstrings, comments, SQL headers and documents: `python docs/lint_prose.py [PATH ...]`.

The style is that of the Google developer documentation. Each pattern has its remedy beside it.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
GENERATED: Final = "<!-- Made by"
_AMERICAN: Final = "American spelling"
HABITS: Final = {
    r"\b(?:None|null|NULL|[Ee]mpty|0) where\b": "say 'if', not 'where'",
    r"\b[Bb](?:rings?|ringing)\b|\bbrought\b": "say gain, add, cost or cause",
    r"\b(?:of|by) which\b(?! version| table| worker)": "begin a new sentence with the subject",
    r"\bas far as\b": "say 'if', or name the limit",
    r"\bwhere there (?:is|are)\b": "say 'if'",
    r"\bwhat (?:is|was|were|are) (?:known|there|missing|measured|recorded)\b": "name the thing",
    r"(?i)\b(?:analys(?:e|ed|ing)\b|(?:colo|behavio|neighbo)ur|(?:model|label)l(?:ed|ing)|cent(?:red?)\b)": _AMERICAN,
    r"(?i)(?:recogn|summar|maxim|minim|linear|final|synchron)is(?:e|ing|ation)": _AMERICAN,
    r"^(?:What|Of|That|Those|The same|Which|How|Whose)\b(?!.*\?)": "begin with a verb or a noun",
}
PATTERNS: Final = {re.compile(pattern): remedy for pattern, remedy in HABITS.items()}
STARTS: Final = [pattern for pattern in PATTERNS if pattern.pattern.startswith("^")]


def prose(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line number, text, and whether a sentence starts there, for each line of prose in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# "), False
            elif token.type == tokenize.STRING and token.string.lstrip("rf").startswith('"""'):
                for offset, line in enumerate(token.string.lstrip("rf").strip('"').splitlines()):
                    yield token.start[0] + offset, line.strip(), offset == 0
        return
    for number, line in enumerate(text.splitlines(), 1):
        if path.suffix == ".md" or line.startswith("--"):
            yield number, re.sub(r"`[^`]*`", "", line).strip("-# "), False


def main(names: list[str]) -> int:
    """Print each habit with its place; return 1 if there is any."""
    listed = subprocess.run(["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    faults = 0
    for path in (ROOT / name for name in listed.split() if name.endswith((".py", ".sql", ".md"))):
        if path == Path(__file__) or path.read_text(encoding="utf-8").startswith(GENERATED):
            continue
        for number, line, starts in prose(path):
            for pattern, remedy in PATTERNS.items():
                found = pattern.search(line) if starts or pattern not in STARTS else None
                if found:
                    faults += 1
                    print(f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: {remedy}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["rlscope", "instrumentation/rlscope_otel", "queries", "docs", "*.md"]))
