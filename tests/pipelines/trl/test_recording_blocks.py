"""The blocks of docs/recording.md for TRL and transformers, on a CPU with a tiny model in place of the one named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlscope
from tests.recording_blocks import ROOT, check_calls, python_of

pytestmark = pytest.mark.pipelines
MODEL = '"Qwen/Qwen3-0.6B"'


def run(code: str, folder: Path, **environment: str) -> Path:
    """The run folder that a block wrote, with the tiny model."""
    make = "from pathlib import Path; from examples.trl_async.tiny_model import save_tiny; save_tiny(Path('m'))"
    run_dir = folder / "run"
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "instrumentation"))),
        "HF_HUB_OFFLINE": "1",
        "RLSCOPE_RUN_DIR": str(run_dir),
        **environment,
    }
    (folder / "block.py").write_text(f"import torch\ntorch.set_num_threads(1)\n{code}", encoding="utf-8")
    for program in (["-c", make], ["block.py"]):
        command = [sys.executable, *program]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    return run_dir


def test_the_block_of_trl_records_one_colocated_worker(tmp_path: Path) -> None:
    code = python_of("TRL").replace(MODEL, '"m"').replace("max_steps=100", "max_steps=3, max_completion_length=8")
    code = code.replace('output_dir="out"', 'output_dir="out", use_cpu=True, bf16=False, report_to=[]')
    analysis = rlscope.analyze(run(code, tmp_path))
    assert (analysis.run.steps, analysis.run.colocated_gpus) == (3, 1)
    assert analysis.run.samples_trained == 24


def test_the_block_of_transformers_records_batches_and_updates(tmp_path: Path) -> None:
    code = python_of("transformers, continuous batching").replace(MODEL, '"m"')
    # The cache takes most of the free memory if nobody limits it, and zeroing that takes longer than all else.
    small = "from transformers import ContinuousBatchingConfig\nsmall = ContinuousBatchingConfig(num_blocks=64)\n"
    code = small + code.replace("batching(", "batching(continuous_batching_config=small, ")
    folder = run(code, tmp_path, RLSCOPE_ROLE="sampler", RLSCOPE_WORKER_ID="sampler-0")
    with rlscope.open(folder) as recorded:
        assert recorded.sql("SELECT count(*) AS n FROM samples").item() == 32
        assert len(recorded.query("batch_size")) > 0
        applied = recorded.sql("SELECT version FROM weight_updates WHERE phase = 'apply' ORDER BY version")
    assert applied["version"].to_list() == [1, 2]


def test_the_block_of_trl_with_vllm_names_what_the_installed_version_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    assert check_calls(python_of("TRL with vLLM")) >= 4
