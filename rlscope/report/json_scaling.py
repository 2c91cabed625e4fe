"""How training scales, as the JSON documents of an analysis and of a what-if say it. Keys are only ever added to."""

from rlscope.model.outlook import Outlook
from rlscope.report.json_layouts import Json
from rlscope.report.numbers import finite
from rlscope.report.scaling_words import scaling_exponent


def scaling_document(outlook: Outlook) -> dict[str, Json]:
    """How the trainers' rate grows with their number: the exponent, and whether other runs measured it."""
    training = outlook.calibration.training
    exponent, low, high = scaling_exponent(training)
    return {
        "exponent": finite(exponent),
        "low": finite(low),
        "high": finite(high),
        "measured": bool(training.scaling_seen_at),
        "contradicted": training.scaling_contradicted,
        "n_train_gpus": sorted({training.seen_gpus, *training.scaling_seen_at}),
        "also": [
            {"run_id": other.run_id, "n_train_gpus": other.trainer_gpus, "cautions": list(other.cautions)}
            for other in outlook.others
        ],
    }
