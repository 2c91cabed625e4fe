"""NeMo-RL's `train_data_step{N}.jsonl`: lengths and rewards of the samples of each step, beside its console.

The files have no times. Every sample is assumed to finish when the generation of its step ended. Lengths and rewards
are recorded; the waits of a sample are not.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlscope.errors import ImportFileError
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import records_of
from rlscope.importers.quantities import number
from rlscope.importers.rows import items
from rlscope.importers.target import ImportTarget, version_runs
from rlscope.trace.imported import Certainty

_FILE: Final = re.compile(r"train_data_step(\d+)\.jsonl$")


def _recognize(source: ImportSource) -> bool:
    return bool(_files(source.path))


def _files(path: Path) -> list[tuple[int, Path]]:
    """Return the files of samples by step, each with its step."""
    paths = path.glob("train_data_step*.jsonl") if path.is_dir() else (path,)
    return sorted((int(found[1]), each) for each in paths if (found := _FILE.search(each.name)))


def _read(source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Add the samples of the steps that the console reports. Raises ImportFileError if it reports none of them."""
    if not target.steps or target.samplers_id is None:
        raise ImportFileError.of(
            source.path,
            found="samples without step times",
            expected="the console log or metrics of the same NeMo-RL run",
            next_step="Analyze the log, and pass this file with --with.",
        )
    untold = 0
    for step, path in _files(source.path):
        if not target.claim(Path(path.name), NEMO_RL_SAMPLES.kind):
            raise ImportFileError.of(
                path,
                found=f"a second {path.name}, as of a run that was started again",
                expected="one file for each step",
                next_step="Pass the file of the last start that made the step.",
            )
        if step in target.steps:
            _read_step(step, path, target, progress)
        else:
            untold += 1
    if untold:
        target.note(f"{untold:,} sample files left out: the console log does not contain their steps.")
    target.say_origins(Certainty.INFERRED, "samples", rule="all samples of a step finish when its generation ends")
    target.say_origins(Certainty.INFERRED, "deliveries", rule="a step takes its samples when its training begins")


def _read_step(step: int, path: Path, target: ImportTarget, progress: Progress) -> None:
    times = target.steps[step]
    for order, (file, record) in enumerate(records_of(path, target, progress)):
        total, output = _only(record.get("input_lengths")), _sampled_tokens(record)
        if not isinstance(total, int) or output is None or output > total:
            file.tally.bad_lines += 1
            continue
        index = record.get("idx", order)
        name = f"{step}-{index}"
        sample: dict[str, object] = {
            "sample_id": name,
            "segment": 0,
            "group_id": _group(step, index, target.config.get("group_size")),
            "worker_id": target.samplers_id,
            "finished_ns": times.generated_ns,
            "prompt_tokens": total - output,
            "output_tokens": output,
            # Only in a synchronous step is the version of the weights that sampled it certain.
            "versions": version_runs([(times.version, output)] if times.is_synchronous else []),
            "version_source": "segment",
        }
        target.add("samples", sample)
        reward = number(_only(record.get("rewards")))
        target.add_trained(
            name, target.trainer_id, step, times.version, times.trained_ns, queued_ns=times.generated_ns, reward=reward
        )


def _group(step: int, index: object, group_size: object) -> str | None:
    if not isinstance(index, int) or not isinstance(group_size, int) or group_size < 1:
        return None
    return f"{step}-{index // group_size}"


def _sampled_tokens(record: Mapping[str, Any]) -> int | None:
    """Return the number of tokens that the policy was trained on: it sampled exactly these."""
    mask = _only(record.get("token_loss_mask"))
    return sum(map(bool, items(mask))) if isinstance(mask, list) else None


def _only(value: object) -> object:
    """Return the only item of a batch of one, the form in which NeMo-RL writes each key; anything else unchanged."""
    listed = items(value)
    return listed[0] if len(listed) == 1 else value


NEMO_RL_SAMPLES: Final = Importer("nemo-rl-samples", "NeMo-RL samples", _recognize, _read, is_companion=True)
