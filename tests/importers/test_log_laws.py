"""What holds for every importer of logs and dumps: with its file cut anywhere, with any line gone, and with junk."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from rlscope.errors import ImportFileError
from rlscope.frameworks import framework
from rlscope.importers.areal import AREAL_SESSIONS
from rlscope.importers.importer import Importer, open_source
from rlscope.importers.miles import MILES_DASHBOARD
from rlscope.importers.prime_rl import PRIME_RL
from rlscope.importers.sglang import SGLANG_LOG
from rlscope.importers.sglang_requests import SGLANG_REQUESTS
from rlscope.importers.step_rows import step_importer
from rlscope.importers.vllm import VLLM_LOG
from rlscope.pipeline import focused_grid
from rlscope.trace.query import ask
from rlscope.trace.store import open_run
from tests.importers import (
    nemo_console,
    test_sglang,
    test_sglang_requests,
    test_skyrl,
    test_slime,
    test_steps,
    test_vllm,
)
from tests.importers.filling import NEMO_RL_CONSOLE, SKYRL_CONSOLE, SLIME_CONSOLE, Filled, fill
from tests.importers.test_nemo_rl import SYNC

FIXTURES = Path(__file__).parent / "fixtures"
CUTS = 12


@dataclass(frozen=True)
class Log:
    """A file of one importer."""

    importer: Importer
    text: Callable[[], str]
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def fill(self, folder: Path, text: str | bytes) -> Filled:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "run.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return fill(folder / "run", (path, self.importer), **{"utc_offset_s": 0, **self.options})


def nemo() -> str:
    blocks = [
        nemo_console.block(step, 40.0, SYNC, engine=nemo_console.stamped(f"02-26 04:{step:02d}:00"))
        for step in range(1, 4)
    ]
    return nemo_console.CONFIG + "".join(blocks)


def sglang() -> str:
    late = [
        test_sglang.prefill(1.8, 500),
        test_sglang.decode(2.15, 8, 11_000, 320 / 0.6),
        test_sglang.decode(3, 4, 900, 300),
    ]
    return "".join([*test_sglang.steady(6), *late])


def requests() -> str:
    return "".join(json.dumps(test_sglang_requests.record(str(number))) + "\n" for number in range(6))


def verl() -> str:
    return test_steps.CONFIG + "".join(test_steps.verl_line(step, test_steps.ASYNC) for step in range(1, 6))


LOGS = {
    "verl": Log(step_importer(framework("verl")), verl, {"gpus": {"trainer": 8, "sampler": 6}}),
    "nemo-rl": Log(NEMO_RL_CONSOLE, nemo),
    "sglang": Log(SGLANG_LOG, sglang),
    "sglang-requests": Log(SGLANG_REQUESTS, requests),
    "skyrl": Log(SKYRL_CONSOLE, lambda: "".join([test_skyrl.COLOCATED, *test_skyrl.STEP])),
    "slime": Log(SLIME_CONSOLE, lambda: "".join(test_slime.run_lines(test_slime.SEPARATE))),
    "vllm": Log(VLLM_LOG, lambda: test_vllm.FIXTURE.read_text()),
}
FOLDERS = {
    "prime-rl": (PRIME_RL, FIXTURES / "prime_rl"),
    "miles": (MILES_DASHBOARD, FIXTURES / "miles"),
    "areal": (AREAL_SESSIONS, FIXTURES / "areal"),
}
GPUS = {"trainer": 2, "sampler": 2}


@pytest.fixture(params=LOGS.values(), ids=list(LOGS))
def log(request: pytest.FixtureRequest) -> Log:
    return request.param


def imports_or_says_why(log: Log, folder: Path, text: str | bytes) -> Filled | None:
    """The run, or None where nothing that is known is left; any other error is a bug."""
    try:
        return log.fill(folder, text)
    except ImportFileError:
        return None


def check_laws(run: Filled) -> None:
    """Every worker's states add up to its GPU time, and no row is turned, stray or outside its worker's time."""
    with open_run(run.folder) as opened:
        extents = {row["worker_id"]: row for row in ask(opened, "worker_extents").iter_rows(named=True)}
        ledger = ask(opened, "ledger", asdict(focused_grid(opened)))
        faults = ask(opened, "row_faults")["fault"].to_list()
    for worker_id, extent in extents.items():
        if extent["gpu_count"]:
            state_ns = ledger.filter(ledger["worker_id"] == worker_id)["state_ns"].sum()
            assert state_ns == extent["end_ns"] - extent["start_ns"], worker_id
    assert not [
        fault for fault in faults if "before their start" in fault or "reach outside" in fault or "busy" in fault
    ]
    assert not [fault for fault in faults if "negative staleness" in fault or "without a readable worker" in fault]


def test_the_states_of_every_worker_add_up_and_no_row_is_out_of_place(log: Log, tmp_path: Path) -> None:
    check_laws(log.fill(tmp_path, log.text()))


@pytest.mark.parametrize(("importer", "folder"), FOLDERS.values(), ids=FOLDERS)
def test_so_do_those_of_a_folder(importer: Importer, folder: Path, tmp_path: Path) -> None:
    check_laws(fill(tmp_path / "run", (folder, importer), gpus=GPUS))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("nemo-rl", nemo_console.CONFIG + "\n===== Step 1/50 =====\n", "at least one finished step"),
        ("sglang", "[2026-03-22 00:00:00] INFO: ready\n", "log level to info"),
        ("sglang-requests", '{"id": "a"}\n', "--export-metrics-to-file"),
        ("skyrl", test_skyrl.COLOCATED, "entry point"),
        ("slime", test_slime.SEPARATE, "log of the whole job"),
        ("vllm", test_vllm.CAPACITY, "disable_log_stats"),
    ],
)
def test_a_file_that_holds_nothing_to_import_is_an_error_that_names_what_prints_it(
    name: str, text: str, named: str, tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text(text)
    assert not LOGS[name].importer.recognize(open_source(tmp_path / "run.log"))
    with pytest.raises(ImportFileError, match=named):
        LOGS[name].fill(tmp_path, text)


def test_any_prefix_imports_or_says_what_is_missing(log: Log, tmp_path: Path) -> None:
    text = log.text().encode()
    runs = [imports_or_says_why(log, tmp_path / str(cut), text[: len(text) * cut // CUTS]) for cut in range(CUTS + 1)]
    assert runs[0] is None
    assert runs[-1] is not None
    # Once there is something to import, more of the file never takes it away.
    first = next(index for index, run in enumerate(runs) if run is not None)
    assert all(run is not None for run in runs[first:])


def test_bytes_that_are_no_text_are_skipped(log: Log, tmp_path: Path) -> None:
    text = log.text().encode()
    middle = text.index(b"\n", len(text) // 2) + 1
    junk = text[:middle] + bytes(range(128, 256)) + b"\x00\xff\n" + text[middle:]
    assert row_counts(log.fill(tmp_path / "junk", junk)) == row_counts(log.fill(tmp_path / "plain", text))


TABLES = ("samples", "engine_steps", "train_steps", "weight_updates", "activities")


def row_counts(run: Filled) -> dict[str, int]:
    return {table: len(run.rows(table)) for table in TABLES}


@pytest.mark.parametrize("columns", [80, 132])
def test_a_terminal_that_wraps_the_lines_changes_no_row(log: Log, tmp_path: Path, columns: int) -> None:
    if log.importer is SGLANG_REQUESTS:
        pytest.skip("a file of records is no console")
    text = re.sub(r"\x1b\[\d+m", "", log.text())
    parts = (line[at : at + columns] for line in text.splitlines() for at in range(0, len(line), columns))
    wrapped, plain = log.fill(tmp_path / "wrapped", "\n".join(parts)), log.fill(tmp_path / "plain", text)
    assert log.importer.recognize(open_source(tmp_path / "wrapped" / "run.log"))
    assert {table: wrapped.rows(table) for table in TABLES} == {table: plain.rows(table) for table in TABLES}


@pytest.mark.parametrize(("importer", "folder"), FOLDERS.values(), ids=FOLDERS)
def test_any_prefix_of_any_file_of_a_folder_imports_or_says_what_is_missing(
    importer: Importer, folder: Path, tmp_path: Path
) -> None:
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*.jsonl"))]
    for number, name in enumerate(files[:: max(1, len(files) // 8)]):
        for share in (0.0, 0.37, 0.9):
            copy = tmp_path / f"{number}-{share}"
            shutil.copytree(folder, copy)
            whole = (folder / name).read_bytes()
            (copy / name).write_bytes(whole[: int(len(whole) * share)])
            try:
                run = fill(tmp_path / f"{copy.name}-run", (copy, importer), gpus=GPUS)
            except ImportFileError:
                continue
            assert all(row["end_ns"] >= row["start_ns"] for row in run.rows("activities"))


NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w.])")
ABSURD = ("9" * 5_000, "9" * 400, str(2**63), "1e999", "1e300", "1.2.3", "NaN")


def with_absurd_numbers(text: str, places: int) -> Iterator[str]:
    """The text with one number after the other replaced by an absurd one, at places that lie evenly in it."""
    spots = list(NUMBER.finditer(text))
    for spot, absurd in zip(spots[:: max(1, len(spots) // places)], cycle(ABSURD), strict=False):
        yield text[: spot.start()] + absurd + text[spot.end() :]


def test_an_absurd_number_costs_its_line_at_most(log: Log, tmp_path: Path) -> None:
    for number, text in enumerate(with_absurd_numbers(log.text(), places=21)):
        filled = log.fill(tmp_path / str(number), text)
        assert filled.imported.files, text


@pytest.mark.parametrize(("importer", "folder"), FOLDERS.values(), ids=FOLDERS)
def test_an_absurd_number_in_a_folder_costs_its_record_at_most(
    importer: Importer, folder: Path, tmp_path: Path
) -> None:
    """In one file of each kind."""
    shutil.copytree(folder, tmp_path / "in")
    for path in {each.parts[-2:]: each for each in sorted((tmp_path / "in").rglob("*.jsonl"))}.values():
        whole = path.read_text()
        for number, text in enumerate(with_absurd_numbers(whole, places=7)):
            path.write_text(text)
            run = fill(tmp_path / f"{path.parent.name}-{number}", (tmp_path / "in", importer), gpus=GPUS)
            assert run.imported.files, path
        path.write_text(whole)
