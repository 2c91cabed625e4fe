"""The code of docs/recording.md, by section, for the tests that run it or resolve its names."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
TEXT: Final = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """The text of each section by its title."""
    parts = re.split(r"^## (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def python_of(title: str) -> str:
    """The one block of Python in a section."""
    (code,) = re.findall(r"```python\n(.*?)```", sections()[title], re.DOTALL)
    return code


def commands_of(title: str) -> str:
    """The shell commands of a section."""
    return "\n".join(re.findall(r"```\n(.*?)```", sections()[title], re.DOTALL))


def imported(code: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def resolved(module: str, name: str) -> object:
    """What an import gives. Raises ImportError or AttributeError."""
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")


def check_calls(code: str) -> int:
    """Bind every call of `name.function(...)` on something imported to its signature; returns how many there were.

    Raises TypeError for arguments that it does not take.
    """
    known = {name: (module, name) for module, name in imported(code)}
    calls = 0
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if not isinstance(owner, ast.Name) or owner.id not in known:
            continue
        target = resolved(*known[owner.id])
        function = getattr(target, node.func.attr) if isinstance(node.func, ast.Attribute) else target
        keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg is not None}
        inspect.signature(function).bind(*(None for _ in node.args), **keywords)  # type: ignore[arg-type]
        calls += 1
    return calls
