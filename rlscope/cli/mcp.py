"""`rlscope mcp`: answer an agent that asks about runs."""

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of runs and logs. Nothing else is read.")
    ],
) -> None:
    r"""Serve runs to an agent over the Model Context Protocol, on stdin and stdout.

    Needs pip install 'rlscope\[mcp]'.
    """
    from rlscope.mcp_server import serve

    serve(folders)
