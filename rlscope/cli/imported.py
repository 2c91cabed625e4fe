"""Options for facts that an imported file does not state. Three commands take them, as one argument `options`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlscope.cli.app import option, with_options

if TYPE_CHECKING:
    from rlscope.importers.target import ImportOptions

_OPTIONS = (
    option(
        "framework", str, "--as", metavar="FRAMEWORK", help="Framework that wrote the file, if it cannot be detected."
    ),
    option(
        "table",
        Path,
        "--framework",
        metavar="FILE",
        help="TOML file with the names of your framework's metrics (docs/importers.md).",
    ),
    option(
        "phases",
        str,
        metavar="PHASE=METRIC,...",
        help="For a framework that rlscope does not know: the metric that holds the seconds of each phase, such as "
        "step=time/total,generate=time/sample,train=time/fit.",
    ),
    option("gpus", str, metavar="ROLE=N,...", help="GPUs by role, for example trainer=8,sampler=8."),
    option("gpus_per_engine", int, min=1, help="GPUs per engine."),
    option("with_files", list[Path], "--with", metavar="PATH", help="Another file of the same run. Repeatable."),
    option(
        "engine_logs",
        list[str],
        "--engine-log",
        metavar="PATTERN",
        help="Logs of the inference engines, one file for each, or a run folder of recorded engines. Repeatable.",
    ),
    option("utc_offset", str, metavar="+HH:MM", help="Time zone of a log that does not state one."),
)


def _options(**given: Any) -> "ImportOptions":  # noqa: ANN401  # as the command line gives them
    from rlscope.importers.options import import_options

    return import_options(**{name: value for name, value in given.items() if value is not None})


with_import_options = with_options("options", _OPTIONS, _options)
"""Replaces the argument `options` of a command by these options of the command line."""
