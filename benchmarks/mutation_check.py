"""How many mutants of `rlscope/` a suite kills, one per line; the last comparison is in `mutation_check.txt`.

A mutant is one line of `rlscope/` changed in one place: an operator, a constant, a returned value, or a statement that
is skipped. The seed decides which lines, so two checkouts with the same `rlscope/` and different tests get the same
mutants. `record` runs every test module of a checkout by itself under coverage and keeps which lines it executes, also
in the processes that it starts. `kill` then runs, for each mutant, the modules that execute its line, the quickest
first, until one fails. A mutant in a line that no test executes survives. `kill` changes files of the checkout while it
runs. Both checkouts need `coverage` in their .venv.

    python benchmarks/mutation_check.py record CHECKOUT lines.json -m "not cluster"
    python benchmarks/mutation_check.py kill CHECKOUT lines.json --mutants 60 --seed 0

Where only a few modules can tell, as of one package, nothing needs to be recorded: `few` runs them all on each mutant.

    python benchmarks/mutation_check.py few CHECKOUT --package rlscope/model/analytic --tests tests/model/analytic
"""

import argparse
import ast
import json
import os
import random
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

OPERATORS = (
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
    (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.FloorDiv, ast.Mult), (ast.BitAnd, ast.BitOr),
)  # fmt: skip
SWAPPED = {a: b for one, other in OPERATORS for a, b in ((one, other), (other, one))} | {ast.Mult: ast.Div}


class Mutant(NamedTuple):
    file: str
    line: int
    before: str
    after: str
    span: tuple[int, int]
    """Bytes of the file that are replaced."""
    executed: tuple[int, int] | str
    """Lines of which one is executed where the mutant is; of what is executed on import, the name that it is for."""


def mutated(node: ast.AST) -> Iterator[str]:
    """What stands for the node in each of its mutants."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        yield ast.unparse(ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators))
    elif isinstance(node, ast.BoolOp):
        yield f"({ast.unparse(ast.BoolOp(SWAPPED[type(node.op)](), node.values))})"
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield f"({ast.unparse(ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.IfExp):
        yield f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield repr(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield repr(node.value + "X")
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return None"
    elif isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield)
    ):
        yield "pass"


def mutants(root: Path, file: Path) -> Iterator[Mutant]:
    source = file.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node: ast.AST, executed: tuple[int, int] | str, in_function: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if isinstance(node, ast.FunctionDef):
                executed, in_function = (node.body[0].lineno, node.end_lineno or 0), True
            elif isinstance(node, ast.ClassDef) and not in_function:
                executed = node.name
            elif in_function:
                executed = (node.lineno, max(node.lineno, end))
            elif isinstance(node, ast.Assign | ast.AnnAssign) and not executed:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                executed = next((each.id for each in ast.walk(target) if isinstance(each, ast.Name)), "")
        for after in mutated(node):
            span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
            yield Mutant(str(file.relative_to(root)), node.lineno, source[slice(*span)].decode(), after, span, executed)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "format_spec", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
                # Positions within an f-string are not those of the file.
                if isinstance(child, ast.AST) and not docstring and not isinstance(child, ast.JoinedStr):
                    yield from visit(child, executed, in_function)

    yield from visit(ast.parse(source), "", False)


def drawn(root: Path, package: str, count: int, seed: int) -> list[Mutant]:
    """Mutants of lines of a package that are drawn at random, one of each line."""
    lines: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for file in [root / package] if package.endswith(".py") else sorted((root / package).rglob("*.py")):
        for mutant in mutants(root, file):
            lines[mutant.file, mutant.line].append(mutant)
    draws = random.Random(seed)
    return [draws.choice(lines[line]) for line in draws.sample(sorted(lines), count)]


def pytest(
    root: Path, module: str, *arguments: str, under: tuple[str, ...] = (), timeout_s: float | None = None
) -> int:
    """The exit status of a test module that runs by itself, or of several with a space between them."""
    command = [".venv/bin/python", *under, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command += module.split()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MUTATION_MODULE": module}
    out = subprocess.DEVNULL
    return subprocess.run(
        [*command, *arguments], cwd=root, env=environment, stdout=out, stderr=out, timeout=timeout_s
    ).returncode


def modules_of(root: Path, tests: list[str]) -> list[Path]:
    """The test modules below these folders, or these modules."""
    named = [root / each for each in tests]
    return sorted(path for each in named for path in ([each] if each.is_file() else each.rglob("test_*.py")))


def record(root: Path, out: Path, tests: list[str], arguments: list[str]) -> None:
    """Keep the seconds of each test module and the lines that it executes. Modules that fail are left out and named."""
    data, settings = out.with_suffix(".coverage"), out.with_suffix(".coveragerc")
    settings.write_text(
        f"[run]\ndata_file = {data}\ninclude = {root}/rlscope/*\nparallel = true\npatch = subprocess\n"
        "context = ${MUTATION_MODULE}\ndisable_warnings = no-data-collected\n"
    )
    seconds: dict[str, float] = {}
    for path in modules_of(root, tests):
        module, began = str(path.relative_to(root)), time.monotonic()
        status = pytest(root, module, *arguments, under=("-m", "coverage", "run", f"--rcfile={settings}"))
        if status == 0:
            seconds[module] = time.monotonic() - began
        print(f"{time.monotonic() - began:6.1f} s  exit {status}  {module}", flush=True)
    subprocess.run([".venv/bin/python", "-m", "coverage", "combine", f"--rcfile={settings}"], cwd=root, check=True)
    from coverage import CoverageData

    measured = CoverageData(str(data))
    measured.read()
    lines = {str(Path(file).relative_to(root)): measured.contexts_by_lineno(file) for file in measured.measured_files()}
    out.write_text(json.dumps({"seconds": seconds, "arguments": arguments, "lines": lines}))


def executing(root: Path, mutant: Mutant, lines: dict[str, dict[str, list[str]]]) -> set[str]:
    """The test modules that execute the line of a mutant, or functions that name what an imported line is for."""
    if not isinstance(mutant.executed, str):
        first, last = mutant.executed
        known = lines.get(mutant.file, {})
        return {each for line in range(first, last + 1) for each in known.get(str(line), ())}
    found: set[str] = set()
    for file, executed in lines.items():
        text, imports = (root / file).read_text().splitlines(), statements_of_functions(root / file)
        found |= {
            module
            for line, modules in executed.items()
            if int(line) in imports and re.search(rf"\b{mutant.executed}\b", text[int(line) - 1])
            for module in modules
        }
    return found


def statements_of_functions(file: Path) -> set[int]:
    functions = [each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.FunctionDef)]
    return {line for each in functions for line in range(each.body[0].lineno, (each.end_lineno or 0) + 1)}


def by_time(root: Path, mutant: Mutant, kept: dict[str, Any]) -> list[str]:
    """The test modules that execute a mutant, the quickest first."""
    return sorted(executing(root, mutant, kept["lines"]) & kept["seconds"].keys(), key=kept["seconds"].__getitem__)


def killer(
    root: Path, mutant: Mutant, modules: list[str], arguments: list[str], seconds: dict[str, float]
) -> str | None:
    """The first test module that fails with the mutant. seconds: what each takes without one, where that is known."""
    file = root / mutant.file
    source, (start, end) = file.read_bytes(), mutant.span
    try:
        file.write_bytes(source[:start] + mutant.after.encode() + source[end:])
        for module in modules:
            if pytest(root, module, "-x", *arguments, timeout_s=5 * seconds.get(module, 60) + 120):
                return module
    except subprocess.TimeoutExpired:
        return f"{module} (does not end)"
    finally:
        file.write_bytes(source)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="How many mutants of rlscope/ a suite kills.")
    parser.add_argument("what", choices=("record", "kill", "few"))
    parser.add_argument("checkout", type=lambda text: Path(text).resolve())
    parser.add_argument("lines", nargs="?", type=lambda text: Path(text).resolve())
    parser.add_argument("--tests", nargs="+", default=["tests", "instrumentation/tests"])
    parser.add_argument("--package", default="rlscope")
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given, of_pytest = parser.parse_known_args()
    if given.what == "record":
        record(given.checkout, given.lines, given.tests, of_pytest)
        return
    kept: dict[str, Any] = {"seconds": {}, "arguments": of_pytest}
    if given.what == "kill":
        kept = json.loads(given.lines.read_text())
    killed = 0
    for mutant in drawn(given.checkout, given.package, given.mutants, given.seed):
        modules = [" ".join(given.tests)] if given.what == "few" else by_time(given.checkout, mutant, kept)
        by = killer(given.checkout, mutant, modules, kept["arguments"], kept["seconds"])
        killed += by is not None
        change = f"{mutant.before} -> {mutant.after}".replace("\n", " ")
        print(f"{'killed' if by else 'SURVIVED':8}  {mutant.file}:{mutant.line}  {change:.160}  {by or ''}", flush=True)
    print(f"{killed} of {given.mutants} killed")


if __name__ == "__main__":
    main()
