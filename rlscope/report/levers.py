"""What one per cent of each quantity buys, in rows and a sentence: the same for terminal and page."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from rlscope.model.outlook import Outlook
from rlscope.model.sensitivity import Lever, Quantity, Silence
from rlscope.report import numbers

TITLE: Final = "What one per cent of each quantity buys"


class LeverRow(NamedTuple):
    """One quantity."""

    name: str
    gain: str
    """Of trained tokens per second, with its interval."""
    remark: str


def lever_rows(outlook: Outlook) -> list[LeverRow]:
    """What buys most first; what buys nothing last, with the reason."""
    return [_row(lever) for lever in outlook.levers]


def lever_sentence(outlook: Outlook) -> str:
    """How the figures are to be read, and how far to trust them."""
    text = (
        "Change of trained tokens per second for one per cent of each alone, today's layout kept; small whole numbers "
        "are moved by one and divided down."
    )
    rough = any(lever.is_rough for lever in outlook.levers)
    return f"{text} A limit binds that the formulas hold for only roughly, so these are rough too." if rough else text


def _row(lever: Lever) -> LeverRow:
    gain = lever.gain_ratio
    text = numbers.NO_DATA if gain is None else numbers.with_interval(numbers.signed_hundredths, *gain)
    return LeverRow(_NAMES[lever.quantity], text, _SILENCES[lever.silence] if lever.silence else "")


_NAMES: Final[Mapping[Quantity, str]] = {
    "trainer_speed": "faster training",
    "trainer_gpus": "more trainer GPUs",
    "forward_speed": "faster forward passes",
    "prefill_speed": "faster prefill alone",
    "sampler_gpus": "more sampler GPUs",
    "running_limit": "more running per engine",
    "kv_capacity": "larger KV cache",
    "weight_update": "shorter weight updates",
    "response_length": "shorter responses",
    "environment": "shorter environment waits",
    "in_flight_cap": "larger cap in flight",
    "staleness_cap": "later staleness cap",
}
_SILENCES: Final[Mapping[Silence, str]] = {
    "not_limiting": "something else binds",
    "not_there": "the run has none",
    "not_recorded": "not recorded",
}
