"""`rlscope watch`: check a run against alert rules while it is written."""

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

import rlscope
from rlscope.cli.app import RunPath, duration_option
from rlscope.cli.check import FIRED, FailOnOption, RulesFile
from rlscope.cli.imported import with_import_options
from rlscope.text_out import for_terminal

if TYPE_CHECKING:
    from rlscope.alerts.live.facts import LiveView

Show = Callable[["LiveView"], None]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        show_default="in the run folder, or beside the log",
        help="State file, with the resume point and the alerts already sent.",
    ),
]
Interval = Annotated[float, duration_option("--interval", "5s", "Poll interval, for example 5s or 1m.")]
Scrape = Annotated[
    list[str] | None,
    typer.Option(
        "--scrape",
        metavar="URL",
        help="Metrics page of a vLLM or SGLang server without hooks, for example http://localhost:8000/metrics. "
        "Its engines are recorded into the run folder, or beside the log. Repeatable.",
    ),
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain",
        help="Print a status line per poll instead of a live screen, or of a line per minute without a terminal.",
    ),
]


@with_import_options
def watch(
    path: RunPath,
    options: "rlscope.ImportOptions",
    rules: RulesFile = None,
    state: State = None,
    interval_s: Interval = 5.0,
    scrape: Scrape = None,
    fail_on: FailOnOption = "critical",
    plain: Plain = False,
) -> None:
    """Follow a run or a growing log: show the run's state and send an alert when a rule fires.

    Ends when the run ends, or when a log has not grown for 10 minutes and ten steps. Exits 3 if a rule of severity
    --fail-on or higher fired.
    """
    # Set before polars is imported: next to a training job, threads that wait for each other cost more than they save.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from rlscope.alerts.live.watch import watch_run

    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def note(text: str) -> None:
        notes.print(for_terminal(f"rlscope: {text}"))

    with _interruptions() as count, _display(plain) as show:
        outcome = watch_run(path, rules, state, interval_s, show, count, note, options=options, scrape=scrape or ())
    if outcome.untold:
        note(f"{outcome.untold} {'alert' if outcome.untold == 1 else 'alerts'} could not be delivered")
    if outcome.failed(fail_on):
        raise typer.Exit(FIRED)


@contextmanager
def _interruptions() -> Generator[Callable[[], int]]:
    """Yield a function that counts the signals received so far that ask the watch to end."""
    received = list[int]()
    handled = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: received.append(number)) for number in handled]
    try:
        yield lambda: len(received)
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _display(plain: bool) -> Generator[Show]:
    """Yield the function that shows the state after each poll: as a line, or on a screen that it redraws."""
    if plain or not sys.stdout.isatty():
        from rlscope.reports.text.watch import Lines

        yield Lines(lambda line: print(line, flush=True), each_look=plain).show
        return
    from rlscope.reports.terminal import on_terminal
    from rlscope.reports.text.watch import screen

    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda view: live.update(on_terminal(screen(view), live.console.width), refresh=True)
