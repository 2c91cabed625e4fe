"""The command and the parts that its subcommands share: common arguments, progress and output."""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rlscope.text_out import as_bytes, check_output, encoded_for, for_terminal, write_file

if TYPE_CHECKING:
    from rlscope.reports.blocks import Block

_Target = TypeVar("_Target", Path, str)
STDOUT: Final = "-"
STDIN: Final = "-"
AnswerFormat = Literal["text", "markdown", "json"]
"""Output format of an analysis or a comparison."""


def checked_output(target: _Target | None) -> _Target | None:
    """Return the output path of an option. Raises OutputError, before any work is done, if it cannot be written."""
    if target is not None and str(target) != STDOUT:
        check_output(Path(target))
    return target


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Find out where the GPU time of an asynchronous RL run goes, how stale its tokens are, and which layout would "
    "be faster.",
)


def _run_folder(path: Path) -> Path:
    """Return the run folder that a path stands for."""
    from rlscope.trace.manifest import run_folder

    return run_folder(path)


RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN_DIR", help="Folder of the recorded run (RLSCOPE_RUN_DIR).", callback=_run_folder),
]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="Run folder, or a log or metrics file of an RL framework.",
        callback=_run_folder,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        show_default="this process only",
        help="Spread the work over a Ray cluster: its address, or auto. Needs pip install 'rlscope\\[ray]'.",
    ),
]
Also = Annotated[
    list[Path] | None,
    typer.Option(
        "--also",
        metavar="RUN_DIR",
        help="Another run of the same model with a different number of trainer GPUs, to measure how training scales. "
        "Repeatable.",
    ),
]
JsonTo = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE|-", callback=checked_output, help="Also write the result as JSON; - is stdout."
    ),
]


def seconds_of(text: str | float) -> float:
    """Return the seconds of a duration of an option, such as 90s or 5m. Raises BadParameter."""
    from rlscope.alerts.durations import parse_duration

    if isinstance(text, float):  # The default, which is in seconds.
        return text
    try:
        seconds = parse_duration(text) / 1e9
    except ValueError as error:
        raise typer.BadParameter(f"found {text!r}; expected {error}") from None
    if not seconds:
        raise typer.BadParameter("expected a duration above zero")
    return seconds


def output_option(help_: str, default: str = "none") -> Any:  # noqa: ANN401  # as typer.Option
    """Return the option -o for a file, which is refused before any work is done if it cannot be written."""
    return typer.Option("-o", "--output", show_default=default, callback=checked_output, help=help_)


def duration_option(flag: str, default: str, help_: str) -> Any:  # noqa: ANN401  # as typer.Option
    """Return an option for a duration, as its seconds."""
    return typer.Option(flag, parser=seconds_of, metavar="DURATION", show_default=default, help=help_)


def option(name: str, kind: Any, *flags: str, **details: Any) -> Parameter:  # noqa: ANN401  # as typer takes them
    """Return an option of the command line, for `with_options`. It is None if it is not given.

    Args:
        name: Name of the argument that the option fills.
        kind: Type of its value.
        *flags: Names on the command line, if they differ from `name`.
        **details: Further arguments of `typer.Option`.
    """
    details = {"show_default": False, **details}
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, typer.Option(*flags, **details)]
    )


def with_options(
    name: str, options: Sequence[Parameter], value: Callable[..., object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces an argument of a command by options.

    Args:
        name: Name of the argument.
        options: The options that take its place.
        value: Function from the given options to the value of the argument.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        """Return the command with the options in place of the argument."""
        listed: list[Parameter] = []
        for own in signature(command).parameters.values():
            listed += options if own.name == name else [own.replace(kind=Parameter.KEYWORD_ONLY)]

        @wraps(command)
        def run(**arguments: object) -> None:
            chosen = {each.name: arguments.pop(each.name) for each in options}
            command(**arguments, **{name: value(**chosen)})

        run.__signature__ = Signature(listed)  # type: ignore[attr-defined]
        # Typer resolves annotations by name, and that of the replaced argument may be imported for type checkers alone.
        run.__annotations__ = {}
        return run

    return decorated


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Run without a subcommand, for `--version`."""
    if version:
        from importlib.metadata import version as installed

        print(installed("rlscope"))
        raise typer.Exit


@contextmanager
def progress_on(notes: Console, first: str = "opening the run") -> Generator[Callable[[str], None]]:
    """Show the current activity and its duration on a terminal, so that the user sees which one is slow."""
    if notes.quiet or not notes.is_terminal:
        yield lambda _: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task(first, total=None)

        def say(doing: str) -> None:
            bar.reset(task, description=for_terminal(doing))

        yield say


def folded(text: str, console: Console, hanging: int | None = None) -> str:
    """Return the text wrapped between words if the console is a terminal, else unchanged.

    Args:
        text: One or more lines.
        console: The console whose width limits each line.
        hanging: Indentation of continuation lines, in characters. None keeps the indentation of the line.
    """
    if not console.is_terminal:
        return text
    lines = list[str]()
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) if hanging is None else hanging)
        wrap = TextWrapper(
            console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
            replace_whitespace=False, drop_whitespace=True,
        )  # fmt: skip
        lines.append(wrap.fill(line) if len(line) > console.width else line)
    return "\n".join(lines)


def print_or_write(target: str, text: str, *, is_data: bool = False) -> None:
    """Write text and a newline to a file, or to stdout if the target is a dash. Raises OutputError.

    Args:
        target: A path, or a dash.
        text: Text without its last newline.
        is_data: True for a format that declares its encoding: it is written as UTF-8 whatever the terminal uses.
    """
    line = text + "\n"
    if target == STDOUT:
        sys.stdout.buffer.write(as_bytes(line) if is_data else encoded_for(sys.stdout, line))
        sys.stdout.buffer.flush()
    else:
        write_file(Path(target), as_bytes(line))


class _Answer(Protocol):
    @property
    def blocks(self) -> "Iterable[Block]": ...
    def to_json(self) -> str: ...
    def to_markdown(self) -> str: ...


def refuse_both_on_stdout(json_to: str | None, answer_format: AnswerFormat) -> None:
    """Raise BadParameter if JSON and another format are both to be printed to stdout."""
    if json_to == STDOUT and answer_format != "text":
        raise typer.BadParameter("--json - and --format both print to stdout; pass only one of them")


def print_answer(answer: _Answer, console: Console, answer_format: AnswerFormat = "text") -> None:
    """Print an answer: as text to a console, or in another format to stdout."""
    if answer_format != "text":
        print_or_write(STDOUT, answer.to_markdown() if answer_format == "markdown" else answer.to_json())
        return
    from rlscope.reports.terminal import print_blocks

    print_blocks(answer.blocks, console)


def write_json(target: str | None, answer: _Answer, notes: Console) -> Console:
    """Write an answer as JSON if that was requested. Return the console for text: `notes` if stdout has the JSON."""
    if target is not None:
        print_or_write(target, answer.to_json())
    return notes if target == STDOUT else Console()


class _WithPage(Protocol):
    def to_html(self, path: Path) -> Path: ...


def write_page(answer: _WithPage, path: Path, notes: Console) -> None:
    """Write the HTML report. It comes last: it takes longest, and may fail although the rest succeeded."""
    with progress_on(notes, "drawing the report"):
        page = answer.to_html(path)
    note_written(notes, page)


def note_written(notes: Console, path: Path) -> None:
    """Print the path of a file that was written."""
    notes.print(f"wrote {for_terminal(str(path))}", highlight=False, soft_wrap=True, markup=False)
