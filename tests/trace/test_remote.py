"""A run in an object store is analysed as the same run on disk; what goes wrong on the way is said without secrets."""

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rlscope_otel
from rlscope_otel import uploader

import rlscope
from rlscope.errors import ArgumentError, LimitError, RlscopeError, RunFolderError
from rlscope.importers.join import resolve
from rlscope.importers.target import ImportOptions
from rlscope.trace import remote
from tests.journals import COMPLETE, read_back
from tests.trace.recorded import record
from tests.trace_folder import engine_row, train_row

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A real S3 server in this process."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record(tmp_path / "run", "e0", "sampler", {"engine_steps": [[engine_row("e0", at, at + 1)] for at in (0, 1, 2)]})
    record(tmp_path / "run", "t0", "trainer", {"train_steps": [[train_row("t0", 0, 50)]]})
    return tmp_path / "run"


@pytest.fixture
def store(endpoint: str, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the server, which has the empty bucket `runs`."""
    from pyarrow import fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    client = fs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True)
    client.create_dir("runs")
    client.delete_dir_contents("runs")
    return client


def upload(run: Path, store: Any, to: str) -> None:
    for path in run.rglob("*"):
        if path.is_file():
            with store.open_output_stream(f"{to}/{path.relative_to(run).as_posix()}") as target:
                target.write(path.read_bytes())


def temporary(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "temporary").iterdir()]


def test_a_run_in_a_bucket_is_analysed_as_the_same_run_on_disk(run: Path, store: Any, tmp_path: Path) -> None:
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "weights.bin").write_bytes(b"far too large")
    upload(run, store, "runs/team/monday")
    said: list[str] = []
    analysis = rlscope.analyze("s3://runs/team/monday", progress=said.append, page=False)
    assert analysis.to_json() == rlscope.analyze(run, page=False).to_json()
    assert "opening s3://runs/team/monday" in said[0]
    assert any(re.fullmatch(r"copying s3://runs/team/monday/?: \S+ k?B of \S+ k?B", each) for each in said)
    assert analysis.page_path == Path("report.html")
    (folder,) = (tmp_path / "temporary").glob("rlscope-remote-*")
    assert not (folder / "checkpoints").exists()
    assert SECRET not in "".join(said)
    del analysis
    assert temporary(tmp_path) == []


def test_a_recorder_copies_its_run_to_a_bucket_as_it_is_on_disk(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "_INTERVAL_S", 0.2)
    with rlscope_otel.start_run(
        tmp_path / "recorded", "sampler", "w0", upload_to="s3://runs/monday", flush_interval_s=0.05
    ) as recorder:
        for _ in range(30):
            recorder.engine_step(time.monotonic_ns(), time.monotonic_ns() + 1)
            time.sleep(0.02)
    assert recorder.faults.counts == {}
    copy = remote.fetch_run("s3://runs/monday")
    assert read_back(copy) == read_back(tmp_path / "recorded")
    assert read_back(copy)[1] == COMPLETE


@pytest.mark.parametrize("address", ["s3://runs/team/monday/", "s3:/runs/team/monday"])
def test_it_can_be_opened_and_queried(address: str, run: Path, store: Any) -> None:
    upload(run, store, "runs/team/monday")
    with rlscope.open(address) as opened:
        assert opened.sql("SELECT count(*) AS rows FROM engine_steps")["rows"].to_list() == [3]
        assert opened.run_id == "run"


def test_a_journal_that_was_replaced_meanwhile_is_listed_again(
    run: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(run, store, "runs/monday")
    fetch_one, was_gone = remote._fetch_one, list[str]()

    def gone_once(client: Any, file: Any, folder: Path) -> bool:
        if file.name.startswith("engine_steps/") and not was_gone:
            was_gone.append(file.name)
            return False
        return fetch_one(client, file, folder)

    monkeypatch.setattr(remote, "_fetch_one", gone_once)
    folder = remote.fetch_run("s3://runs/monday")
    assert len(was_gone) == 1
    assert len(list((folder / "engine_steps").iterdir())) == 3


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://elsewhere/run", "s3://elsewhere/run: found no such bucket; .* Check its name, and AWS_ENDPOINT_URL"),
        ("s3://runs/nothing", "s3://runs/nothing: found nothing; expected a readable run folder"),
        ("s3://runs/empty", "s3://runs/empty: found no run.json; expected the folder of a run"),
    ],
)
def test_what_is_no_run_is_said(address: str, why: str, store: Any, tmp_path: Path) -> None:
    with store.open_output_stream("runs/empty/a.txt") as target:
        target.write(b"a")
    with pytest.raises(RunFolderError, match=why):
        rlscope.open(address)
    assert temporary(tmp_path) == []


def test_a_store_that_does_not_answer_is_said(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(RunFolderError, match="no connection to the store"):
        rlscope.open("s3://runs/monday")


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (
            "When listing objects: AWS Error ACCESS_DENIED during ListObjectsV2 operation: Access Denied",
            "access denied",
        ),
        ("AWS Error INVALID_ACCESS_KEY_ID during HeadObject operation", "access denied"),
        ("AWS Error SIGNATURE_DOES_NOT_MATCH during GetObject operation", "access denied"),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation: No response body.", "access denied"),
        ("AWS Error NETWORK_CONNECTION during ListObjectsV2 operation: curlCode: 7", "no connection to the store"),
        ("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation", "no such bucket"),
        ("Not a valid bucket name: 'a..b'", "no such bucket"),
        (f"AWS Error INTERNAL: key {SECRET} is odd", r"AWS Error INTERNAL: key \*\*\* is odd"),
    ],
)
def test_what_a_client_says_is_explained_without_the_secret(
    message: str, found: str, no_settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str, **__: object) -> None:
        raise OSError(message)

    monkeypatch.setattr(remote, "opened", fail)
    with pytest.raises(RunFolderError, match=f"found {found}; expected") as raised:
        remote.fetch_run("s3://runs/monday")
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    "address",
    [
        f"s3://AKIA:{SECRET}@runs/monday",
        "s3:/AKIA:secret@runs/monday?region=x",
        "s3://AKIA@runs/x",
        "abfs://AKIA:secret@runs/x",
        "abfss://AKIA%3Asecret@runs/x",
        "s3://runs/x?endpoint_override=http://AKIA:secret@host",
        "gs://runs/x?endpoint_override=AKIA%40host",
        "abfs://runs@account.dfs.core.windows.net/x?account_key=AKIA",
    ],
)
@pytest.mark.parametrize("options", [None, ImportOptions(framework="verl")])
def test_credentials_in_an_address_are_refused_and_not_repeated(address: str, options: Any) -> None:
    with pytest.raises(ArgumentError) as raised:
        resolve(Path(address), options)
    assert ("found credentials in the address" in str(raised.value)) == (options is None)
    assert "AKIA" not in str(raised.value) and "secret@" not in str(raised.value)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"LARGEST_BYTES": 0}, r"found 4 files of .*; expected at most 0 B, because the files are copied"),
        ({"_SPARE_RATIO": 10**15}, r"expected a run that fits in the free "),
    ],
)
def test_a_run_that_is_too_large_to_copy_is_refused_before_it_is_copied(
    limits: dict[str, int], why: str, run: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(run, store, "runs/monday")
    for name, value in limits.items():
        monkeypatch.setattr(remote, name, value)
    with pytest.raises(LimitError, match=why):
        rlscope.open("s3://runs/monday")
    assert temporary(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "is_address"),
    [("s3://bucket/run", True), ("s3:/bucket/run", True), ("gs://bucket/run", True), ("abfs://a@b/run", True),
     ("runs/s3", False), ("/s3:/run", False), ("https://host/run", False), ("s3:", False), ("s3:run", False)],
)  # fmt: skip
def test_an_address_is_told_from_a_path(path: str, is_address: bool) -> None:
    assert remote.is_remote(path) == is_address
    assert remote.is_remote(Path(path)) == is_address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3:/bucket/run", "s3://bucket/run"),
        ("s3://bucket/run@2?region=x&endpoint_override=host:9000", "s3://bucket/run@2"),
        ("s3://bucket/12:30@host", "s3://bucket/12:30@host"),
        ("s3://key:a/b?c@bucket/run", "s3://***@bucket/run"),
    ],
)
def test_an_address_is_shown_without_parameters_and_secrets(address: str, shown: str) -> None:
    assert remote.shown_address(address) == shown


def test_options_of_an_import_are_refused_with_a_run_in_a_bucket() -> None:
    with pytest.raises(RlscopeError, match="a run folder with import options"):
        resolve(Path("s3://runs/monday"), ImportOptions(framework="verl"))
