"""Is the model still as true as it was? Short forms of the benchmarks of accuracy, against the figures that are kept.

Each figure is an error, so smaller is better. One that has grown by more than a fifth fails. What is measured, and
where the whole benchmark is:

    same_run_error       predicted over true rate of the run's own layout      advice_value.py
    other_splits_error   the same of the other splits of its GPUs
    other_splits_outside share of true rates outside of their 90% interval
    regret               nine in ten of the advised layouts fall less short of the best one
    harmful_changes      systems that are slower after the advised change
    wrong_causes         systems whose verdict does not name what truly brings most
    decode_error         fitted over measured decode steps, in range           latency_fit.py
    decode_beyond_error  the same at batches beyond those that were fitted
    decode_beyond_outside share of those steps outside of their 90% interval
    planned_step_error   planned over published step time, dense models        published_steps.py
    simulator_error      rate of the model's simulator over the token by token simulator's  simulator_agreement.py

    python benchmarks/accuracy.py [--processes 2] [--keep]

`--keep` writes the figures to `accuracy.json`, after a change that is meant to move them.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process per core; before numpy is loaded

import advice_value
import latency_fit
import numpy as np
import published_steps
import simulator_agreement
from advice_systems import advice_systems

KEPT: Final = Path(__file__).with_suffix(".json")
SYSTEMS: Final = 28
SEED: Final = 20261128
"""Not the seed of `advice_value.py`: its systems are those that the model is developed on."""
SIMULATED_STEPS, SIMULATED_SEEDS = 200, 6
WORSE_RATIO: Final = 1.2
LEAST_ERROR: Final = 0.002
"""Growth of an error that never counts: a hundredth of a small error is noise."""
LEAST_COUNT: Final = 1
"""Growth of a number of systems that never counts."""


def figures(processes: int | None) -> dict[str, float]:
    """Return every figure, by name."""
    return {**_of_advice(processes), **_of_decode(), **_of_plans(), **_of_simulator()}


def _of_advice(processes: int | None) -> dict[str, float]:
    with ProcessPoolExecutor(processes) as pool:
        judged = list(pool.map(advice_value.judge, advice_systems(SEED)[:SYSTEMS]))
    told = [each for each in judged if each.told is not None]
    same = [advice_value.errors(each, lambda layout, own: layout == own)[0] for each in told]
    others = [advice_value.errors(each, lambda layout, own: layout != own) for each in told]
    return {
        "same_run_error": median(map(abs, same)),
        "other_splits_error": median(float(np.median(np.abs(each))) for each in others),
        "other_splits_outside": 1.0 - float(np.mean(advice_value.covered(told))),
        "regret": float(np.quantile([each.regret_ratio for each in judged], 0.9)),
        "harmful_changes": sum(each.ratio(each.chosen) < 1.0 - advice_value.HARM_RATIO for each in judged),
        "wrong_causes": sum(not each.cause_is_right for each in judged),
    }


def _of_decode() -> dict[str, float]:
    every = latency_fit.read_series(latency_fit.KEPT_TABLE)
    within = [latency_fit.judge(_fitted(each), each, latency_fit.everywhere(each)) for each in every]
    beyond = latency_fit.merged(
        latency_fit.beyond_seen(each, each.prior) for each in every if each.running.max() > latency_fit.SEEN_BATCH
    )
    return {
        "decode_error": latency_fit.mape(latency_fit.merged(within).errors),
        "decode_beyond_error": latency_fit.mape(beyond.errors),
        "decode_beyond_outside": 1.0 - float(np.mean(beyond.inside)),
    }


def _fitted(series: latency_fit.Series) -> latency_fit.CurveFit:
    return latency_fit.fitted(series.points(latency_fit.everywhere(series)), series.prior)


def _of_plans() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        dense = [run for run in published_steps.runs() if not run.has_experts]
        errors = [published_steps.predict(run, run.plan(Path(folder))).error(run.step_s) for run in dense]
    return {"planned_step_error": median(map(abs, errors))}


def _of_simulator() -> dict[str, float]:
    cases = simulator_agreement.cases()
    return {
        "simulator_error": median(simulator_agreement.line(each, SIMULATED_STEPS, SIMULATED_SEEDS)[1] for each in cases)
    }


def worse(found: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """Return a line for each figure that has grown by more than a fifth, or that is not kept."""
    return [
        f"{name}: {value:.4g}, kept {kept[name]:.4g}" if name in kept else f"{name}: {value:.4g}, not kept"
        for name, value in found.items()
        if name not in kept or (value > WORSE_RATIO * kept[name] and value > kept[name] + _slack(value))
    ]


def _slack(value: float) -> float:
    return LEAST_COUNT if isinstance(value, int) else LEAST_ERROR


def main() -> None:
    """Measure, print, and compare or keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--keep", action="store_true", help="write the figures instead of comparing them")
    options = parser.parse_args()
    start_s = time.perf_counter()
    found = figures(options.processes)
    kept = {} if options.keep else json.loads(KEPT.read_text(encoding="utf-8"))
    for name, value in found.items():
        print(f"{name:<24}{value:>10.4g}{kept.get(name, float('nan')):>10.4g}")
    print(f"{time.perf_counter() - start_s:.0f} s")
    if options.keep:
        KEPT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    elif lines := worse(found, kept):
        sys.exit("\n".join(["worse by more than a fifth:", *lines]))


if __name__ == "__main__":
    main()
