"""SGLang's request files (`--export-metrics-to-file`): a JSON record for each request, with times and versions."""

from collections.abc import Mapping
from typing import Any, Final

from rlscope.errors import ImportFileError
from rlscope.importers.importer import Importer, ImportSource, Progress
from rlscope.importers.lines import LONGEST_RECORD_BYTES, LogFile, safe_worker_id
from rlscope.importers.quantities import MOST_STEPS, epoch_ns, number, whole
from rlscope.importers.rows import Tally, mapping
from rlscope.importers.target import ImportTarget
from rlscope.trace.imported import Certainty

_KEYS: Final = ('"request_received_ts"', '"request_finished_ts"')
_UNNAMED: Final = "default"
"""SGLang's label for the weights that it started with."""


def _recognize(source: ImportSource) -> bool:
    return any(all(key in line for key in _KEYS) for line in source.text.splitlines())


def _read(source: ImportSource, target: ImportTarget, progress: Progress) -> None:
    """Add each request as a sample. Raises ImportFileError if no record has times."""
    file = LogFile(source.path, Tally(progress), LONGEST_RECORD_BYTES)
    folder = source.path.parent.name
    engine = next(iter(target.engines)) if len(target.engines) == 1 else safe_worker_id(f"sglang-{folder}")
    versions, requests = _Versions(), 0
    for record in file.records():
        row = _sample(record, engine, versions)
        if row is None:
            file.tally.bad_lines += 1
            continue
        requests += 1
        target.add("samples", row)
        target.extend_worker(engine, row["submitted_ns"] or row["finished_ns"], row["finished_ns"])
    if not requests:
        raise ImportFileError.of(
            source.path,
            found=f"{file.tally.lines:,} lines, none with the times of a finished request",
            expected="JSON records with request_received_ts and request_finished_ts",
            next_step="Start SGLang with --export-metrics-to-file and --enable-metrics.",
        )
    target.add_engine(engine, gpu_count=target.options.gpus_per_engine)
    target.say_origin("samples", Certainty.RECORDED)
    if versions.is_unknown:
        target.note("Some requests have no weight version, so the staleness of their tokens is unknown.")
    target.add_file("request metrics", file.tally.source_file(source.path))


class _Versions:
    """Version numbers for SGLang's weight labels: the label's own number, else its order of appearance."""

    def __init__(self) -> None:
        self.is_unknown = False
        self._ordinals: dict[str, int] = {}

    def number(self, label: object) -> int:
        """Return the version of a label."""
        text = str(label)
        if (stated := number(text, MOST_STEPS)) is not None:
            return int(stated)
        if text == _UNNAMED:
            return 0
        return self._ordinals.setdefault(text, len(self._ordinals) + 1)

    def runs(self, record: Mapping[str, Any], output_tokens: int) -> list[dict[str, int]]:
        """Return the versions of all output tokens; empty if the record does not give one for each token."""
        listed = record.get("weight_versions")
        if isinstance(listed, list) and listed:
            try:
                runs = [
                    {"version": self.number(run["version"]), "start": whole(run["start"]), "end": whole(run["end"])}
                    for run in listed
                ]
            except (KeyError, TypeError, ValueError):
                runs = []
            ends = [0, *(run["end"] for run in runs)]
            is_whole = [run["start"] for run in runs] == ends[:-1] and ends[-1] == output_tokens
            if runs and is_whole:
                return runs
        elif (label := record.get("weight_version")) is not None:
            return [{"version": self.number(label), "start": 0, "end": output_tokens}]
        self.is_unknown = self.is_unknown or output_tokens > 0
        return []


def _sample(record: Mapping[str, Any], engine: str, versions: _Versions) -> dict[str, Any] | None:
    """Return a row of samples; None if the record lacks times or lengths."""
    received, finished = epoch_ns(record.get("request_received_ts")), epoch_ns(record.get("request_finished_ts"))
    prompt, output = record.get("prompt_tokens"), record.get("completion_tokens")
    name = record.get("id")
    if finished is None or name is None or not isinstance(prompt, int) or not isinstance(output, int):
        return None
    started = epoch_ns(record.get("forward_entry_time"))
    is_placed = started is not None and (received or 0) <= started <= finished
    return {
        "sample_id": str(name),
        "segment": 0,
        "worker_id": engine,
        "submitted_ns": received,
        "started_ns": started if is_placed else None,
        "finished_ns": finished,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "versions": versions.runs(record, output),
        "version_source": "engine",
        "finish_reason": _finish_reason(record.get("finish_reason")),
        "preemptions": _whole(record.get("num_retractions")),
        "cached_tokens": _whole(record.get("cached_tokens")),
    }


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _finish_reason(value: object) -> str | None:
    kind = mapping(value).get("type", value)
    return kind if kind in ("stop", "length", "abort") else None


SGLANG_REQUESTS: Final = Importer("sglang-requests", "SGLang request metrics", _recognize, _read, is_companion=True)
