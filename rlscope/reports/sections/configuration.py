"""The run's configuration from run.json: any keys, any values."""

import json
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, cast

from rlscope import format as fmt
from rlscope.analysis.result import AnalysisResult
from rlscope.reports.text.origin import start_words

ROWS_MAX: Final = 200
_TEXT_MAX: Final = 400


class ConfigurationSection(NamedTuple):
    """Content of the section."""

    facts: list[tuple[str, str]]
    """Facts of the run."""
    settings: list[tuple[str, str]]
    """Its config; the name of a nested setting is its path."""
    left_out: str
    """Sentence with the number of settings that are not shown; empty if all are."""


def configuration_section(analysis: AnalysisResult) -> ConfigurationSection:
    """Return the content of the section."""
    run = analysis.run
    settings = sorted(_flat(run.settings))
    more = len(settings) - ROWS_MAX
    return ConfigurationSection(
        facts=[
            ("run", run.run_id),
            ("started", start_words(run.started_ns, analysis.data_quality.imported)),
            ("duration", fmt.duration(run.duration_s or None)),
            ("trainer GPUs", fmt.count(run.trainer_gpus if run.total_gpus else None)),
            ("sampler GPUs", fmt.count(run.sampler_gpus if run.total_gpus else None)),
            *([("colocated GPUs", fmt.count(run.colocated_gpus))] if run.colocated_gpus else []),
        ],
        settings=settings[:ROWS_MAX],
        left_out=f"{fmt.counted(more, 'more setting', 'more settings')} in run.json." if more > 0 else "",
    )


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
