"""The trackers get the analysis's numbers: read back from what the real packages wrote, each where it is installed."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import rlscope
from rlscope.document import extended
from rlscope.errors import ArgumentError, OutputError, RlscopeError
from rlscope.exports.trackers import PAGE, Summary, Target, push_analysis, summary_of
from rlscope.importers import tensorboard, wandb
from rlscope.importers.join import RunFolder
from rlscope.importers.rows import Tally
from tests.cli.command import invoke
from tests.reports.analysis_fixture import empty_analysis, full_analysis
from tests.reports.model_fixture import changing_model
from tests.trace_folder import worker, write_run

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def summary() -> Summary:
    """With the real page."""
    return summary_of(full_analysis())


@pytest.fixture(autouse=True)
def page_made_once(summary: Summary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing it takes seconds."""
    monkeypatch.setattr("rlscope.exports.trackers.render", lambda _analysis: summary.page)


def test_rates_ledger_staleness_and_losses_have_their_units_in_their_names(summary: Summary) -> None:
    given = full_analysis()
    numbers = summary.numbers
    assert numbers["rlscope/throughput/steady_tokens_per_s"] == 9_310.5
    assert numbers["rlscope/throughput/generated_tokens_per_s"] == 9_120.0
    assert numbers["rlscope/staleness/tokens_p95"] == 4.0 and numbers["rlscope/staleness/in_queue_mean"] == 1.3
    assert numbers["rlscope/lost/samplers_gpu_s"] == 892.4
    shares = {name: value for name, value in numbers.items() if name.startswith("rlscope/ledger/trainer/")}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert len([name for name in numbers if "/ledger/" in name]) == len(given.ledger.states)


def test_predicted_and_measured_stand_side_by_side() -> None:
    numbers = summary_of(replace(full_analysis(), model=changing_model())).numbers
    names = ("predicted_tokens_per_s", "predicted_tokens_per_s_low", "predicted_tokens_per_s_high",
             "held_out_tokens_per_s", "residual_ratio")  # fmt: skip
    assert {f"rlscope/throughput/{name}" for name in names} <= numbers.keys()
    assert "rlscope/throughput/synchronous_tokens_per_s" in numbers
    assert not any(isinstance(value, bool) for value in numbers.values())
    replay = changing_model().replay
    missed = replace(replay, compared=(replace(replay.rate, measured=2.0, replayed=1.0), *replay.compared[1:]))
    numbers = summary_of(replace(full_analysis(), model=replace(changing_model(), replay=missed))).numbers
    assert "rlscope/recommendation/gain_ratio" not in numbers


def test_what_is_not_known_is_missing_and_not_0() -> None:
    found = summary_of(empty_analysis())
    assert dict(found.numbers) == {} and found.steps == ()
    assert found.words["rlscope/bottleneck"] == "unknown" and found.words["rlscope/findings"] == "none"
    odd = replace(full_analysis(), throughput=replace(full_analysis().throughput, steady_tokens_per_s=float("nan")))
    assert "rlscope/throughput/steady_tokens_per_s" not in summary_of(odd).numbers


def test_tensorboard_has_every_number_every_step_and_the_page(summary: Summary, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    where = push_analysis(full_analysis(), Target("tensorboard", folder=tmp_path / "logs"))
    assert str(tmp_path / "logs") in where
    (path,) = (tmp_path / "logs").glob("events.*")
    scalars, texts = dict[tuple[str, int], float](), dict[str, str]()
    for event in map(Event.FromString, tensorboard._records(path, Tally())):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars[value.tag, event.step] = value.simple_value
            else:
                texts[value.tag.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()
    expected = {(name, 0): value for name, value in summary.numbers.items()}
    expected |= {(name, step): value for step, found in summary.steps for name, value in found.items()}
    assert scalars == pytest.approx(expected, rel=1e-6) and len(summary.steps) > 10
    assert texts == summary.words and texts.keys() >= {f"rlscope/{name}" for name in ("verdict", "why", "next")}
    assert (tmp_path / "logs" / PAGE).read_text(encoding="utf-8") == summary.page


def test_a_log_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        push_analysis(full_analysis(), Target("tensorboard", folder=tmp_path / "file"))


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_metrics_tags_and_the_page(
    summary: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    where = push_analysis(full_analysis(), Target("mlflow", project="grpo"))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("grpo").experiment_id])
    assert where == f"run {run.info.run_id} of MLflow" and run.info.status == "FINISHED"
    assert {name: run.data.metrics[name] for name in summary.numbers} == summary.numbers
    history = client.get_metric_history(run.info.run_id, "rlscope/steps/staleness_p95")
    assert {each.step: each.value for each in history} == {
        step: found["rlscope/steps/staleness_p95"] for step, found in summary.steps
    }
    assert {name: run.data.tags[name] for name in summary.words} == summary.words
    (page,) = client.list_artifacts(run.info.run_id, "rlscope")
    assert page.path == f"rlscope/{PAGE}"
    assert push_analysis(full_analysis(), Target("mlflow", into=run.info.run_id)) == where
    assert len(client.search_runs([run.info.experiment_id])) == 1


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_has_the_summary_the_history_and_the_page(
    summary: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    where = push_analysis(full_analysis(), Target("wandb", project="grpo", into="abc123"))
    assert where == "run abc123 of Weights & Biases, kept offline; `wandb sync` sends it"
    (path,) = tmp_path.rglob("*.wandb")
    values, steps, artifacts = dict[str, str](), 0, list[str]()
    for record in map(Record.FromString, wandb._records(path, Tally())):
        kind = record.WhichOneof("record_type")
        if kind == "summary":
            values |= {each.key or "/".join(each.nested_key): each.value_json for each in record.summary.update}
        elif kind == "history":
            steps += any("rlscope/step" in (each.key, *each.nested_key) for each in record.history.item)
        elif kind == "artifact":
            artifacts.append(record.artifact.name)
    assert {name: float(values[name]) for name in summary.numbers} == pytest.approx(dict(summary.numbers))
    assert values["rlscope/bottleneck"] == '"samplers"'
    assert steps == len(summary.steps)
    assert artifacts == ["rlscope-grpo-math-7b-2026-11-21"]
    assert KEY.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("flags", "module"), [(["--wandb"], "wandb"), (["--mlflow"], "mlflow"), (["--tensorboard", "logs"], "tensorboardX")]
)
def test_without_its_package_the_message_says_how_to_install_it_before_the_run_is_read(
    flags: list[str], module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RlscopeError, match=rf"rlscope\[{flags[0].removeprefix('--')}\]"):
        invoke("push", tmp_path / "no run", *flags)


def test_an_error_of_a_tracker_is_shown_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        token = os.environ["MLFLOW_TRACKING_TOKEN"]
        raise ConnectionError(f"https://anna:secret@tracker.example/api and http://key@h refused {token}; mail a@b.c")

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", KEY)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=fail))
    with pytest.raises(RlscopeError) as caught:
        push_analysis(full_analysis(), Target("mlflow"))
    said = str(caught.value)
    assert "ConnectionError: https://***@tracker.example/api and http://***@h refused ***; mail a@b.c" in said
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_the_command_takes_exactly_one_tracker(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run", [worker("t0")])
    for arguments in ([], ["--wandb", "--mlflow"]):
        assert invoke("push", run_dir, *arguments).exit_code == 2


def test_the_command_says_where_it_wrote_and_leaves_no_page_in_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    run_dir = write_run(tmp_path / "run", [worker("t0")])
    done = invoke("push", run_dir, "--tensorboard", tmp_path / "logs")
    assert done.exit_code == 0 and done.stdout == ""
    assert (tmp_path / "logs" / PAGE).exists() and not (run_dir / "report.html").exists()


def test_an_unknown_tracker_and_one_without_its_folder_are_refused(tmp_path: Path) -> None:
    analysis = extended(rlscope.Analysis, full_analysis(), path=tmp_path, folder=RunFolder(tmp_path))
    with pytest.raises(ArgumentError, match="folder: found none; expected the log folder of TensorBoard"):
        analysis.push("tensorboard")
    with pytest.raises(ArgumentError, match="wandb, mlflow, tensorboard"):
        analysis.push("neptune")  # type: ignore[arg-type]
