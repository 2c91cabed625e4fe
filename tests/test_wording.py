"""What a person reads is plain English: words that only this project would use are refused, with what to write instead.

Read are string literals of the code and docstrings of public names, the page's templates, TOML files, headers of SQL
files, and Markdown. Not read: names in code and in JSON, comments in Python, docstrings of what is private.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent


class Rule(NamedTuple):
    """Words to refuse, as a regular expression in which a space is any white space, and what to write instead."""

    words: str
    instead: str
    example: str
    """A text that has to be refused."""


RULES = (
    Rule(r"mend(s|ed|ing)?", "fix", "which is cheaper to mend"),
    Rule(r"repair(s|ed|ing)?", "fix", "repair the file"),
    Rule(r"(stand|stands|standing|stood) still|standstill", "idle, paused", "the trainer stands still"),
    Rule(r"for (its|their) age", "dropped as stale", "samples dropped for their age"),
    Rule(r"too old", "stale", "a sample that is too old"),
    Rule(r"(hear|hears|heard) (of|from|nothing)", "no data from ... for", "was not heard of for 5 minutes"),
    Rule(r"(hold|holds|holding|held) [^.;:]{0,40}to (\S+ ){0,2}rules", "check against rules", "hold a run to rules"),
    Rule(r"most (that is )?possible", "upper bound", "the most that is possible"),
    Rule(r"beyond (those|the batches) that", "extrapolated", "batches beyond those that the run made"),
    Rule(r"what (1|one)\W*(%|percent|per cent) of", "sensitivity", "what 1% of each thing buys"),
    Rule(r"buys?", "sensitivity, changes throughput by", "what that buys"),
    Rule(r"levers?", "sensitivity", "the largest lever"),
    Rule(r"to use next", "recommended layout", "The layout to use next"),
    Rule(r"(by|in|take|takes|taking|took) turns", "synchronous, lockstep, alternate", "they work by turns"),
    Rule(r"put(s|ting)? (it |them |requests? )?back", "preempted", "a request is put back"),
    Rule(r"least is known", "largest uncertainty:", "least is known of the decode curve"),
    Rule(r"leaves? possible|of (the )?cases", "of posterior draws", "faster in 60% of cases"),
    Rule(r"nine (to one|in ten|times)", "at least 90% likely", "nine to one or better"),
    Rule(r"twentieths?", "5%", "better by a twentieth"),
    Rule(r"sure(ly)? enough", "with enough confidence", "the run does not say so surely enough"),
    Rule(r"(batches|held|holds?|taken|takes) (one |\d+ )?ahead", "prefetched", "it takes its batches one ahead"),
    Rule(r"illness(es)?", "finding", "one illness a module"),
    Rule(r"graver|gravest", "of higher severity", "this severity or a graver one"),
    Rule(r"which there (is|are) not", "unknown ...", "a metric which there is not"),
    Rule(r"own (SQL|query|queries)", "ad-hoc SQL", "your own SQL"),
    Rule(r"manners?", "rollout scheduling", "the run's manner"),
    Rule(r"outlooks?", "model result, forecast", "the outlook of the run"),
    Rule(r"dear(er|est|ly)?", "expensive", "weight updates are dear"),
    Rule(r"weight_updates_dear", "weight_updates_expensive", "the rule weight_updates_dear"),
    Rule(r"over the run's cap", "beyond the staleness cap", "tokens over the run's cap"),
    Rule(r"(is|are|was|were|been|being|who|it|people) told", "notified, sent, given", "who is told"),
    Rule(r"tells? people", "notify", "tell people what fires"),
    Rule(r"(say|says|said) (nothing |little |much |more )?of", "about", "the model says nothing of this run"),
    Rule(r"so many times|of so many", "by this factor, of N", "responses so many times as long"),
    Rule(r"whatever else is (changed|fixed|mended|removed)", "even with every other", "whatever else is changed"),
    Rule(r"what (it|this|that) rests on", "assumptions", "what this rests on"),
    Rule(r"machine that others", "noisy machine", "the kind of machine that others used"),
    Rule(r"refused: \w+ Error", "SQL syntax error", "your query was refused: Parser Error"),
    Rule(r"per cent", "%, percent", "one per cent of the time"),
    Rule(r"\d+ %", "10%, without a space", "a loss of 10 %"),
    Rule(r"whereof|thereof|therein|whence|hitherto|lest", "a modern word", "lest it fail"),
)

ALLOWED: dict[tuple[str, str], str] = {
    ("CHANGELOG.md", "weight_updates_dear"): "names the rule that was renamed",
}
"""By file and words: what is right where it stands, and why."""

SOURCES = (
    "rlscope/**/*.py",
    "instrumentation/rlscope_otel/**/*.py",
    "rlscope/**/*.html",
    "rlscope/**/*.toml",
    "queries/**/*.sql",
    "*.md",
    "docs/*.md",
    "instrumentation/*.md",
    "examples/*/README.md",
    "sample_traces/*.md",
)
FILES = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})


class Text(NamedTuple):
    """What a person reads in one go, and the line of the file on which it begins."""

    line: int
    text: str


class Refused(NamedTuple):
    """Words of a text that a rule refuses."""

    line: int
    words: str
    instead: str


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)".replace(" ", r"\s+"), re.IGNORECASE)


NAME = re.compile(r"[a-z]*")
"""A word in code, such as a key of JSON. A label begins with a capital, and a rule's name holds an underscore."""
PATTERNS = tuple((_pattern(rule.words), rule.instead) for rule in RULES)


def refused(text: Text) -> Iterator[Refused]:
    for pattern, instead in PATTERNS:
        for match in pattern.finditer(text.text):
            yield Refused(text.line + text.text.count("\n", 0, match.start()), " ".join(match[0].split()), instead)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """The docstrings of private functions and classes, and of what is inside them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and is_private(node.name):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant):
                    yield inner.value


def python_texts(source: str) -> Iterator[Text]:
    """Every string literal that is more than a name; the values in an f-string are read as a number."""
    tree = ast.parse(source)
    skipped = {id(node) for node in private_docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        else:
            continue
        if not NAME.fullmatch(text):
            yield Text(node.lineno, text)


def template_texts(source: str) -> Iterator[Text]:
    """The page's text, without Jinja's names and the tags."""
    value = re.compile(r"\{\{.*?\}\}", re.DOTALL)
    mark = re.compile(r"\{[%#].*?[%#]\}|<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)
    text = value.sub(lambda match: "0" + "\n" * match[0].count("\n"), source)
    yield Text(1, mark.sub(lambda match: "\n" * match[0].count("\n"), text))


def commented_texts(source: str, mark: str) -> Iterator[Text]:
    """The text without the marks of its comments, so that a phrase is found over the end of a line."""
    yield Text(1, re.sub(rf"^[ \t]*{mark}", "", source, flags=re.MULTILINE))


def header_texts(source: str) -> Iterator[Text]:
    """The comments that a SQL file begins with."""
    header = re.match(r"(--.*\n)*", source)
    yield from commented_texts(header[0] if header else "", "--")


def texts(path: Path) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return python_texts(source)
    if path.suffix == ".html":
        return template_texts(source)
    if path.suffix == ".sql":
        return header_texts(source)
    return commented_texts(source, "#" if path.suffix == ".toml" else ">")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_person_reads_is_plain_english(path: Path) -> None:
    where = path.relative_to(ROOT).as_posix()
    found = [each for text in texts(path) for each in refused(text) if (where, each.words.lower()) not in ALLOWED]
    lines = [f"{where}:{each.line}: found {each.words!r}; write instead: {each.instead}" for each in sorted(found)]
    assert not lines, "\n".join(["", *lines])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.instead)
def test_each_rule_refuses_its_example(rule: Rule) -> None:
    assert rule.instead in {each.instead for each in refused(Text(1, rule.example))}


@pytest.mark.parametrize(
    "text",
    (
        "Throughput rises by 10% (90% interval 4% to 16%).",
        "The dearth of samples; the amended file; leverage; recommendation; mannered; a lessee",
        "`batches_ahead`: batches that the trainer has prefetched",
        "each side in turn; the holder of the rules; it holds the rules that fire",
        "A sample is dropped as stale when it is older than the cap allows.",
    ),
)
def test_plain_english_passes(text: str) -> None:
    assert not list(refused(Text(1, text)))


def test_a_phrase_is_found_in_each_kind_of_text_on_its_line() -> None:
    code = 'def shown():\n    """What to\n    mend."""\n    return f"{1} %"\ndef _hidden():\n    "mend"\nKEY = "mend"\n'
    found = [each for text in python_texts(code) for each in refused(text)]
    assert [(each.line, each.words) for each in sorted(found)] == [(3, "mend"), (4, "0 %")]
    (page,) = template_texts("<p class='outlook'>\n{{ outlook }}\n<b>put</b> {% if x %}it\nback</p>")
    assert [(each.line, each.words) for each in refused(page)] == [(3, "put it back")]
    (header,) = header_texts("-- dropped for\n-- their age\n\nSELECT 1 -- mend\n")
    assert [(each.line, each.words) for each in refused(header)] == [(1, "for their age")]
    (rules,) = commented_texts("# what it\n# buys\nname = 1\n", "#")
    assert [(each.line, each.words) for each in refused(rules)] == [(2, "buys")]


def test_every_exception_is_still_needed() -> None:
    for where, words in ALLOWED:
        found = [each.words.lower() for text in texts(ROOT / where) for each in refused(text)]
        assert words in found, f"{where} no longer says {words!r}"
