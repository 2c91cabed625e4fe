"""The run's configuration from run.json: any keys, any values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.blocks import Block, Paragraph, Table
from rlscope.reports.text.origin import start_words

ROWS_MAX: Final = 200
_TEXT_MAX: Final = 400


_NO_SETTINGS: Final = (
    "run.json has no settings. Pass them to the hooks as `config` so that the analysis knows caps, limits and the "
    "price per GPU-hour."
)


def configuration_section(analysis: AnalysisResult) -> Sequence[Block]:
    """Return the blocks of the section."""
    run = analysis.run
    facts = [
        ("run", run.run_id),
        ("started", start_words(run.started_ns, analysis.data_quality.imported)),
        ("duration", fmt.duration(run.duration_s or None)),
        ("trainer GPUs", fmt.count(run.trainer_gpus if run.total_gpus else None)),
        ("sampler GPUs", fmt.count(run.sampler_gpus if run.total_gpus else None)),
        *([("colocated GPUs", fmt.count(run.colocated_gpus))] if run.colocated_gpus else []),
    ]
    return [Table("Run", (), facts, "settings"), *_settings(sorted(_flat(run.settings)))]


def _settings(settings: Sequence[tuple[str, str]]) -> Iterator[Block]:
    """Yield the settings, the first ones of many; the name of a nested setting is its path."""
    if not settings:
        yield Paragraph(_NO_SETTINGS, "empty")
        return
    yield Table("Settings from run.json", (), settings[:ROWS_MAX], "settings")
    more = len(settings) - ROWS_MAX
    if more > 0:
        yield Paragraph(f"{fmt.counted(more, 'more setting', 'more settings')} in run.json.", "note")


def _flat(settings: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(cast("Mapping[str, object]", value), f"{path}{name}.")
        else:
            yield _text(f"{path}{name}"), _text(value)


def _text(value: object) -> str:
    """A value as JSON, strings without quotes; long values are shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} … ({fmt.count(len(text))} characters)"
