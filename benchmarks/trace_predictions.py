"""What rlscope says, from a run folder alone, of layouts that the run did not have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from token_simulator import Layout

from rlscope.analysis.result import Constraints
from rlscope.model.calibration import Calibration
from rlscope.model.estimate import Estimate
from rlscope.model.forecast.predict import predict as predict_layout
from rlscope.model.forecast.recommend import Recommendation
from rlscope.model.forecast.result import NoModelResult
from rlscope.model.system import Layout as ModelLayout
from rlscope.pipeline import analyze


class Advice(NamedTuple):
    """What to do next."""

    changes: bool
    reason: str
    layout: Layout
    """The one recommended; the run's own where it is to stay."""
    staler: Layout | None
    """Named beside it: faster, and staler than a change may be without being asked."""
    gain_ratio: Estimate
    """What is told of the layout to change to, or to try, over today's rate, less 1."""
    tried: Layout | None
    """Named as something to try: likely faster, and not surely."""


@dataclass(frozen=True, slots=True)
class Told:
    """All that rlscope says of a run."""

    advice: Advice
    tokens_per_s: Mapping[Layout, Estimate]
    """Trained response tokens per second: median and 90 % interval of each layout asked about."""
    scaling_known_tokens_per_s: Mapping[Layout, Estimate]
    """The same, had somebody said how the trainers scale; empty where nobody was asked to."""
    trainer_tokens_per_gpu_s: float
    """As calibrated, with the trainers of the run."""


def predict(
    folder: Path, layouts: Sequence[Layout], scaling_exponent: float | None = None, also: Sequence[Path] = ()
) -> Told | NoModelResult:
    """Analyze the folder, with other recordings beside it, and ask about the layouts.

    scaling_exponent: the trainers' true one, to ask once more with it.
    """
    model = analyze(folder, constraints=Constraints(also=tuple(also))).model
    if isinstance(model, NoModelResult):
        return model
    calibration, advised = model.calibration, model.recommendation
    return Told(
        advice=_advice(advised, calibration.layout),
        tokens_per_s=_spreads(calibration, layouts),
        scaling_known_tokens_per_s=(
            {} if scaling_exponent is None else _spreads(_with_scaling(calibration, scaling_exponent), layouts)
        ),
        trainer_tokens_per_gpu_s=calibration.system.trainer.tokens_per_gpu_s,
    )


def _advice(advised: Recommendation, own: ModelLayout) -> Advice:
    tried = advised.best if advised.advice == "probe" else advised.untried
    return Advice(
        changes=advised.changes,
        reason=advised.reason,
        layout=_layout(advised.best.layout if advised.changes else own),
        staler=None if advised.staler is None else _layout(advised.staler.layout),
        gain_ratio=advised.gain_ratio,
        tried=None if tried is None else _layout(tried.layout),
    )


def _spreads(calibration: Calibration, layouts: Sequence[Layout]) -> dict[Layout, Estimate]:
    """The rate of each layout over all draws; 0 where it cannot run."""
    predicted = {layout: predict_layout(calibration, ModelLayout(*_numbers(layout))) for layout in layouts}
    nothing = Estimate.exactly(0.0)
    return {
        layout: nothing if each.drawn_tokens_per_s is None else Estimate.of(each.drawn_tokens_per_s)
        for layout, each in predicted.items()
    }


def _with_scaling(calibration: Calibration, exponent: float) -> Calibration:
    """The calibration with one exponent in all its systems."""
    systems = [
        replace(system, trainer=replace(system.trainer, scaling_exponent=exponent))
        for system in (calibration.system, *calibration.draws)
    ]
    return replace(calibration, system=systems[0], draws=tuple(systems[1:]))


def _layout(layout: ModelLayout) -> Layout:
    return Layout(layout.trainer_gpus, layout.sampler_gpus, layout.max_running)


def _numbers(layout: Layout) -> tuple[int, int, int]:
    return layout.trainer_gpus, layout.sampler_gpus, layout.max_running
