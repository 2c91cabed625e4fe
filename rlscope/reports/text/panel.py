"""The panel of the report in which a reader tries other settings: controls, figures, and a curve over the splits."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rlscope import format as fmt
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.grid import GridPoint, GridSetting, current_values, recommended_layout, solve_grid
from rlscope.model.forecast.layouts import SECONDS_PER_HOUR, Forecast
from rlscope.model.forecast.result import ModelResult
from rlscope.model.system import Layout
from rlscope.reports.blocks import Control, Curve, Offer, Option, Table
from rlscope.reports.text import advice
from rlscope.reports.text.actions import age_words, split_words
from rlscope.reports.text.names import layout_remark
from rlscope.reports.text.price import million_gpu_s, share_words
from rlscope.reports.text.what_if import headline, warning_line

TITLE: Final = "Try other settings"
_SPLIT: Final = "split"
_SETTINGS: Final[Mapping[GridSetting, str]] = {
    "max_running": "Max running per engine",
    "max_staleness": "Staleness cap (versions)",
    "publish_every": "Steps per weight update",
    "max_in_flight_samples": "Max samples in flight",
}
_LEFT: Final = 58
_RIGHT: Final = 340
_TOP: Final = 30
_FOOT: Final = 160
"""Edges of the curve in pixels of its SVG, which is 360 by 182."""
_MOST_TICKS: Final = 5


class _Point(NamedTuple):
    """The current settings, or a what-if."""

    key: str
    """Place of the split; for a change of a setting, also its name and value."""
    split: Layout
    label: str
    rate: Estimate | None
    """Trained tokens per second."""
    gain: str
    figures: Sequence[str]
    said: str
    note: str = ""
    command: str = ""
    """The command that repeats the what-if."""


def panel(model: ModelResult, currency: str | None) -> Offer | None:
    """Solve the what-ifs and return what the panel shows of them; None if there is no alternative."""
    solved, today, now = solve_grid(model), model.calibration.layout, model.forecasts.today
    if not solved:
        return None
    splits = sorted({today, *(each.split for each in solved)}, key=lambda each: each.trainer_gpus)
    own = _Point(
        key=str(splits.index(today)),
        split=today,
        label=split_words(today),
        rate=advice.rate_of(now, now),
        gain="",
        figures=_figures(model, now, model.calibration.steps_per_version, currency),
        said="Current settings",
    )
    points = [own, *(_point(model, splits, each, currency) for each in solved)]
    points.sort(key=lambda each: each.split.trainer_gpus)
    alone = [each for each in points if "/" not in each.key]
    marks, plot = _marks(model, splits), _Plot.of(points)
    cost = "GPU-h" if model.model_config.gpu_hour_price is None else "cost"
    names = ["tokens/s", "staleness p95", "dropped tokens", "GPUs", f"{cost} per 1M trained tokens"]
    # Without splits to list, the table has every setting.
    listed = [each for each in points if each in alone or each.key in marks] if len(alone) > 1 else points
    rows = [(", ".join(filter(None, (each.label, marks.get(each.key)))), each.gain, *each.figures) for each in listed]
    document = {each.key: [each.said, each.note, each.command, each.figures, plot.place(each)] for each in points}
    return Offer(
        notes=_notes(model, splits, solved),
        controls=_controls(model, splits, solved, marks),
        names=names,
        current=own.figures,
        curve=plot.curve(alone, [each for each in points if each.key in marks], marks) if len(alone) > 1 else None,
        table=Table("Predicted with other settings", ("trainer : sampler GPUs", "gain", *names), rows, "stacks"),
        points=json.dumps(document, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _point(model: ModelResult, splits: Sequence[Layout], solved: GridPoint, currency: str | None) -> _Point:
    answer, split = solved.answer, solved.split
    change: dict[str, int | None] = {}
    if split != model.calibration.layout:
        change |= {"trainer_gpus": split.trainer_gpus, "sampler_gpus": split.sampler_gpus}
    if solved.setting is not None:
        change[solved.setting] = solved.value
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in change.items()]
    warnings = [warning_line(each, model) for each in answer.warnings if each not in model.warnings]
    remark, label = layout_remark(answer.predicted), split_words(split)
    if solved.setting is not None:
        label = f"{label}, {_SETTINGS[solved.setting].lower()}: {fmt.count(solved.value)}"
    return _Point(
        key=_key(splits, split, solved.setting, solved.value),
        split=split,
        label=label,
        rate=advice.rate_of(answer.predicted, answer.now),
        gain=advice.gain_text(answer.gain_ratio) or fmt.NO_DATA,
        figures=_figures(model, answer.predicted, answer.steps_per_version, currency),
        said=headline(answer),
        note=" ".join([*([f"{remark[0].upper()}{remark[1:]}."] if remark else []), *warnings]),
        command=" ".join(["rlscope what-if RUN_DIR", *flags]),
    )


def _key(splits: Sequence[Layout], split: Layout, setting: GridSetting | None = None, value: int | None = None) -> str:
    place = str(splits.index(split))
    return place if setting is None else f"{place}/{setting}/{value}"


def _marks(model: ModelResult, splits: Sequence[Layout]) -> dict[str, str]:
    """Return the marks of the current and of the recommended layout, by key."""
    today, best = model.calibration.layout, recommended_layout(model)
    marks = {_key(splits, today): advice.CURRENT}
    if best is not None:
        split = replace(best, max_running=today.max_running)
        key = _key(splits, split) if best == split else _key(splits, split, "max_running", best.max_running)
        marks[key] = advice.mark_of(model, model.recommendation.best)
    return marks


def _figures(model: ModelResult, forecast: Forecast, steps_per_version: float, currency: str | None) -> list[str]:
    """Return the figures of a layout, in the order of the names."""
    now = model.forecasts.today
    rate, config = advice.rate_of(forecast, now), model.model_config
    gpus = forecast.layout.gpus + config.auxiliary_gpus
    gpu_s = million_gpu_s(gpus, rate and rate.value)
    return [
        fmt.with_interval(fmt.si, *rate) if rate else fmt.NO_DATA,
        age_words(forecast.staleness, steps_per_version),
        share_words(forecast.price.dropped_ratio),
        fmt.count(gpus),
        fmt.money(gpu_s, config.gpu_hour_price, currency) or fmt.significant(gpu_s and gpu_s / SECONDS_PER_HOUR),
    ]


def _controls(
    model: ModelResult, splits: Sequence[Layout], solved: Sequence[GridPoint], marks: Mapping[str, str]
) -> list[Control]:
    """Return a control for the splits and one for each setting with an alternative, all in ascending order."""
    # A recommendation that keeps the split leaves it marked as the current one.
    of_splits = {key.split("/")[0]: mark for key, mark in reversed(list(marks.items()))}
    options = [Option(str(n), split_words(split), of_splits.get(str(n), "")) for n, split in enumerate(splits)]
    controls = [Control(_SPLIT, "Trainer : sampler GPUs", options)]
    of_values = {key.partition("/")[2]: mark for key, mark in marks.items()}
    for setting, now in current_values(model).items():
        values = sorted({each.value for each in solved if each.setting == setting and each.value is not None})
        options = [Option(str(value), fmt.count(value), of_values.get(f"{setting}/{value}", "")) for value in values]
        place = len(values) if now is None else sum(value < now for value in values)
        options.insert(place, Option("", "none" if now is None else fmt.significant(now), advice.CURRENT))
        controls.append(Control(setting, _SETTINGS[setting], options))
    return [control for control in controls if len(control.options) > 1]


def _notes(model: ModelResult, splits: Sequence[Layout], solved: Sequence[GridPoint]) -> list[str]:
    combined = {each.split for each in solved if each.setting is not None}
    notes = ["All figures are predicted from the measured throughput of this run, with 90% intervals."]
    if len(splits) > 1 and combined:
        where = fmt.listed([split_words(split) for split in splits if split in combined])
        notes.append(f"The split and one other setting can change together; the other setting at {where} only.")
    else:
        notes.append("One setting changes at a time.")
    if model.calibration.synchronous:
        notes.append("The run is synchronous and is assumed to stay so.")
    return notes


class _Plot(NamedTuple):
    """The scales of the curve: trainer GPUs to the right, trained tokens per second upwards from 0."""

    least_gpus: int
    most_gpus: int
    most_tokens_per_s: float

    @classmethod
    def of(cls, points: Sequence[_Point]) -> "_Plot":
        gpus = [each.split.trainer_gpus for each in points]
        return cls(min(gpus), max(gpus), max(each.rate.high for each in points if each.rate))

    def place(self, point: _Point) -> list[float] | None:
        """Return the center of a point and the ends of its interval: x, y, low, high; None if it is not predicted."""
        rate = point.rate
        return None if rate is None else [self._x(point.split.trainer_gpus), *map(self._y, rate)]

    def curve(self, alone: Sequence[_Point], marked: Sequence[_Point], marks: Mapping[str, str]) -> Curve:
        """Return the curve over the splits that change alone, with the marked layouts."""
        places = [place for each in alone if (place := self.place(each)) is not None]
        edge = [(x, low) for x, _, low, _ in places] + [(x, high) for x, _, _, high in reversed(places)]
        centers = [(place[0], place[1], marks[each.key]) for each in marked if (place := self.place(each)) is not None]
        return Curve(
            band=_corners(edge),
            line=_corners([(x, y) for x, y, *_ in places]),
            x_ticks=[(self._x(each.split.trainer_gpus), fmt.count(each.split.trainer_gpus)) for each in alone],
            y_ticks=[(self._y(tick), fmt.si(tick)) for tick in self._ticks()],
            marks=centers,
        )

    def _x(self, trainer_gpus: int) -> float:
        share = (trainer_gpus - self.least_gpus) / max(1, self.most_gpus - self.least_gpus)
        return round(_LEFT + share * (_RIGHT - _LEFT), 1)

    def _y(self, tokens_per_s: float) -> float:
        return round(_FOOT - tokens_per_s / self.most_tokens_per_s * (_FOOT - _TOP), 1)

    def _ticks(self) -> list[float]:
        unit = 10.0 ** math.floor(math.log10(self.most_tokens_per_s))
        steps = (share * unit for share in (0.2, 0.5, 1.0, 2.0))
        step = next(each for each in steps if self.most_tokens_per_s / each < _MOST_TICKS)
        return [n * step for n in range(int(self.most_tokens_per_s / step) + 1)]


def _corners(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)
