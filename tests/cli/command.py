"""The command `rlscope` in this process."""

from pathlib import Path

from typer.testing import CliRunner, Result

from rlscope.cli import app


def invoke(*arguments: str | Path, stdin: str | bytes | None = None, columns: int = 120) -> Result:
    """Run the command. Errors that it turns into a message are raised."""
    texts = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, texts, input=stdin, env={"COLUMNS": str(columns)}, catch_exceptions=False)
