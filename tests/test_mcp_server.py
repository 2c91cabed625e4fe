"""The MCP server: what its tools answer to a client over stdio, in which parts, and what they refuse to read."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlscope.errors import ArgumentError, RlscopeError
from rlscope.mcp_server import MOST_CHARACTERS, PART_CHARACTERS, RunTools, server_of
from rlscope.planning.schema import EXAMPLE
from tests.kept import TRACES
from tests.trace_folder import train_row, worker, write_run

TIME_LIMIT_S = 300
# Imported by the tests alone: it takes each worker more than a second.
pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")


def asked(folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, str]]:
    """Whether each call failed, and its text, of one server that is a process of its own."""
    from mcp import Client, StdioServerParameters

    async def ask() -> list[tuple[bool, str]]:
        code = "from rlscope.cli import main; main()"
        server = StdioServerParameters(
            command=sys.executable,
            args=["-c", code, "mcp", str(folder)],
            env={"XDG_CACHE_HOME": str(folder.parent / "cache")},
        )
        found: list[tuple[bool, str]] = []
        async with asyncio.timeout(TIME_LIMIT_S), Client(server) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {
                "list_runs", "analyze", "doctor", "query", "what_if", "compare", "plan"
            }  # fmt: skip
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                (content,) = result.content
                found.append((bool(result.is_error), content.text))
        return found

    return asyncio.run(ask())


def test_a_client_over_stdio_gets_answers_and_errors_that_it_can_read(tmp_path: Path) -> None:
    steps = [train_row("t0", 10 * step, 10 * step + 5, step) for step in range(3)]
    write_run(tmp_path / "runs" / "a", [worker("t0", stop_ns=100)], train_steps=steps)
    (tmp_path / "runs" / os.fsdecode(b"b\xff")).mkdir()
    (tmp_path / "runs" / os.fsdecode(b"b\xff") / "run.json").write_text("{}")
    runs = tmp_path / "runs"
    expected = (
        ("analyze", {"path": "a"}, False, "### No verdict"),
        ("query", {"path": "a", "query": "SELECT count(*) AS steps FROM train_steps"}, False, "steps\n3\n"),
        ("query", {"path": "a"}, False, "batch_filling: Did"),
        ("doctor", {"path": "a"}, False, "- "),
        ("list_runs", {}, False, f"Below {runs}:\npath,run_id,"),
        ("analyze", {"path": "."}, True, "2 recorded runs below it: a, b\N{REPLACEMENT CHARACTER}"),
        ("analyze", {"path": "../.."}, True, f"no such path below an open folder; expected one below {runs}"),
        ("query", {"path": "a", "query": "SELECT * FROM read_text('/x')"}, True, "been disabled by configuration"),
        ("query", {"path": "a", "query": "worker_extents", "arguments": {"name": 1}}, True, "unknown argument name"),
        ("what_if", {"path": "a", "changes": {"trainer_gpu": 2}}, True, "trainer_gpu; expected one of trainer_gpus"),
        ("what_if", {"path": "a", "changes": {"trainer_gpus": 2}}, True, "no model"),
        ("plan", {"path": "a"}, True, "plan"),
        ("analyze", {"folder": "a"}, True, "Field required"),
        ("query", {"path": "a", "query": "SELECT 1 AS one"}, False, "one\n1\n"),
    )
    answers = asked(runs, *((tool, arguments) for tool, arguments, _, _ in expected))
    for (tool, _, fails, words), (failed, text) in zip(expected, answers, strict=True):
        assert failed is fails and (words in text if fails else text.startswith(words)), f"{tool}: {text}"


def test_an_answer_comes_in_parts_of_the_same_answer() -> None:
    tools, made = RunTools([TRACES]), list[str]()

    def answer() -> str:
        made.append("x" * (PART_CHARACTERS + 5))
        return made[-1]

    assert tools.part("a", answer, 0) == "x" * PART_CHARACTERS + "\n\n[5 more characters: call again with offset=20000]"
    assert tools.part("a", answer, PART_CHARACTERS) == "xxxxx" and len(made) == 1
    assert tools.part("a", answer, PART_CHARACTERS + 5) == "[the answer has 20,005 characters]"
    tools.part("a", answer, 0)
    assert len(made) == 2
    tools.part("long", lambda: "z" * (MOST_CHARACTERS + 1), 0)
    assert tools.part("long", lambda: "", MOST_CHARACTERS) == (
        "\n[cut after 1,000,000 of 1,000,001 characters: ask for less]"
    )
    assert tools.part("most", lambda: "z" * MOST_CHARACTERS, MOST_CHARACTERS) == "[the answer has 1,000,000 characters]"
    tools.part("a", answer, 1)
    assert len(made) == 3


@pytest.mark.parametrize(
    ("rows", "note"), [(1000, ""), (1001, "[1,000 of 1,001 rows: aggregate, or use LIMIT and OFFSET]")]
)
def test_a_query_returns_at_most_a_thousand_rows(rows: int, note: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a", [worker("t0")])
    lines = RunTools([tmp_path]).query("a", f"SELECT range AS n FROM range({rows})").splitlines()
    assert lines[:2] == ["n", "0"] and lines[1000] == "999" and lines[1001:] == [note] * bool(note)


def test_a_link_out_of_the_folder_and_a_second_folder(tmp_path: Path) -> None:
    for name in ("open", "also", "other"):
        write_run(tmp_path / name / "run", [worker("t0")])
    (tmp_path / "open" / "link").symlink_to(tmp_path / "other" / "run")
    tools = RunTools([tmp_path / "open", tmp_path / "also"])
    assert tools.query("run", "SELECT worker_id FROM workers") == "worker_id\nt0\n"
    assert tools.query(str(tmp_path / "also" / "run"), "SELECT 1 AS n") == "n\n1\n"
    (tmp_path / "open" / "loop").symlink_to("loop")
    for closed in ("link", "loop", "../other/run", str(tmp_path / "other" / "run"), "run\0", "s3://bucket/run"):
        with pytest.raises(ArgumentError, match="no such path below an open folder"):
            tools.query(closed, "SELECT 1 AS n")
    with pytest.raises(ArgumentError, match="no such folder"):
        RunTools([tmp_path / "gone"])


def test_a_plan_and_a_folder_of_logs_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "secret"}')
    logs = tmp_path / "open" / "logs"
    (logs / "inner").mkdir(parents=True)
    (logs / "latest").symlink_to(logs / "inner")
    (logs / "loop").symlink_to(logs)
    (logs / "self").symlink_to("self")
    tools, plan = RunTools([tmp_path / "open"]), EXAMPLE.read_text(encoding="utf-8")
    with pytest.raises(RlscopeError, match="found no run"):
        tools.analyze("logs")
    (tmp_path / "open" / "elsewhere").mkdir()
    (tmp_path / "open" / "elsewhere" / "out.jsonl").symlink_to(tmp_path / "config.json")
    (logs / "inner" / "more").symlink_to(tmp_path / "open" / "elsewhere")
    for tool in (tools.analyze, tools.doctor, tools.query):
        with pytest.raises(ArgumentError, match=r"out\.jsonl: found a link out of the open folders"):
            tool("logs")
    for key, name in (("config_json", "../config.json"), ("config_json", str(tmp_path / "config.json"))):
        (tmp_path / "open" / "plan.toml").write_text(plan.replace(f'# {key} = "config.json"', f'{key} = "{name}"'))
        with pytest.raises(ArgumentError, match=r"config\.json: found no such path below an open folder"):
            tools.plan("plan.toml")
    (tmp_path / "open" / "plan.toml").write_text(plan.replace('# from_run = "runs/earlier"', 'from_run = ".."'))
    with pytest.raises(ArgumentError, match=r"\.\.: found no such path below an open folder"):
        tools.plan("plan.toml")


def test_a_signal_ends_the_server_while_its_client_waits(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from rlscope.cli import main; main()", "mcp", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}
        }}).encode() + b"\n")  # fmt: skip
        server.stdin.flush()
        assert b"rlscope" in server.stdout.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=TIME_LIMIT_S) == 128 + signal.SIGTERM


def test_a_tool_that_panics_is_an_error_that_the_server_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        """As Rust's panics arrive in Python."""

    def doctor(self: RunTools, path: str) -> str:
        raise Panic(path)

    monkeypatch.setattr(RunTools, "doctor", doctor)
    server = server_of(RunTools([TRACES]))
    with pytest.raises(Exception, match="Error executing tool doctor"):
        asyncio.run(server.call_tool("doctor", {"path": "a"}))


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(RlscopeError, match=r"found no package mcp.*pip install 'rlscope\[mcp\]'"):
        server_of(RunTools([TRACES]))
