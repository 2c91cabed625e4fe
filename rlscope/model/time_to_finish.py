"""How long the rest of the run takes, as it is and in the recommended layout, in hours, GPU-hours and money.

Steps are taken to stay as they are in the stable stretch: longer responses make them longer. Not covered: checkpoints
and restarts still to come, and the time that a change of layout takes.
"""

from dataclasses import dataclass

from rlscope.model.blocks import RatioOfSums
from rlscope.model.forecast import Spread

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class TimeToFinish:
    """What is left, from the end of the last step recorded."""

    remaining_steps: int
    today_hours: Spread
    recommended_hours: Spread | None
    """None where the layout is kept."""
    gpus: int
    gpu_hour_price: float | None

    def gpu_hours(self, hours: float) -> float:
        """GPU-hours of so many hours; every GPU of the run counts, idle or not."""
        return hours * self.gpus

    def price(self, hours: float) -> float | None:
        """What they cost; None without a price."""
        return None if self.gpu_hour_price is None else self.gpu_hours(hours) * self.gpu_hour_price


def time_to_finish(
    remaining_steps: int, step_s: RatioOfSums, gain_ratio: Spread | None, gpus: int, gpu_hour_price: float | None
) -> TimeToFinish:
    """Remaining optimizer steps by the step period; gain_ratio: of the recommended layout over today's.

    The interval of the recommended layout joins the ends of both intervals, which is the widest it can be.
    """
    hours = [remaining_steps * seconds / _SECONDS_PER_HOUR for seconds in (step_s.value, step_s.low, step_s.high)]
    today = Spread(*hours)
    recommended = None
    if gain_ratio is not None:
        recommended = Spread(
            today.median / (1.0 + gain_ratio.median),
            today.low / (1.0 + gain_ratio.high),
            today.high / (1.0 + gain_ratio.low),
        )
    return TimeToFinish(remaining_steps, today, recommended, gpus, gpu_hour_price)
