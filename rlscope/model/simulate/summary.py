"""From the columns and totals of a simulated run to what it says: differences, sums over samples, means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from rlscope.model.simulate.ages import Columns, staleness_of
from rlscope.model.simulate.engine import EngineTotals
from rlscope.model.simulate.outcome import EngineSeconds, Simulated, TokenLedger, TrainerSeconds
from rlscope.model.simulate.places import Cause, PlaceTotals
from rlscope.model.simulate.samples import DROPPED, FILTERED, OPEN, QUEUED, TRAINED, Samples
from rlscope.model.simulate.trainer import TrainerTotals


@dataclass(frozen=True, slots=True)
class Totals:
    """All running sums at one moment."""

    now_s: float
    steps: int
    engines: tuple[EngineTotals, ...]
    switches: tuple[tuple[tuple[int, int], ...], ...]
    """(passes done, version) at every change of weights, engine by engine."""
    places: PlaceTotals
    trainer: TrainerTotals
    queue_group_s: float


def summarise(samples: Samples, start: Totals, end: Totals, step_ends_s: Sequence[float]) -> Simulated:
    """What happened between two moments; the ledger from the start of the run to the later one."""
    seconds, engine = end.now_s - start.now_s, _engine_difference(start, end)
    columns = Columns.of(samples)
    trained_groups = np.flatnonzero(columns.group_step > start.steps)
    trained = columns.members(trained_groups)
    lengths = columns.length_tokens[trained]
    idle_s = _difference(start.places.idle_s, end.places.idle_s)
    of_step = np.repeat(columns.group_step[trained_groups], samples.group_size)
    step_tokens = np.bincount(of_step - start.steps - 1, weights=lengths).astype(np.int64)
    return Simulated(
        steps=end.steps - start.steps,
        warm_up_steps=start.steps,
        seconds=seconds,
        step_periods_s=tuple(np.diff([0.0, *step_ends_s])[start.steps :].tolist()),
        step_trained_tokens=tuple(step_tokens.tolist()),
        engines=len(end.engines),
        trainer_seconds=_trainer_difference(start.trainer, end.trainer),
        engine_seconds=EngineSeconds(engine.decode_s, engine.prefill_s, engine.recompute_s, engine.pause_s, idle_s),
        empty_place_s=_difference(start.places.empty_s, end.places.empty_s),
        generated_tokens=engine.tokens,
        passes=engine.passes,
        mean_running=engine.running_s / (len(end.engines) * seconds),
        mean_resident_tokens=engine.resident_token_passes / engine.passes if engine.passes else None,
        preemptions=engine.preemptions,
        mean_trained_tokens=float(lengths.mean()),
        mean_queued_samples=(end.queue_group_s - start.queue_group_s) * samples.group_size / seconds,
        staleness=staleness_of(columns, trained_groups, end.switches),
        ledger=_ledger(columns, end),
    )


def _engine_difference(start: Totals, end: Totals) -> EngineTotals:
    """Summed over engines."""
    return EngineTotals(
        **{
            each.name: sum(getattr(totals, each.name) for totals in end.engines)
            - sum(getattr(totals, each.name) for totals in start.engines)
            for each in fields(EngineTotals)
        }
    )


def _trainer_difference(start: TrainerTotals, end: TrainerTotals) -> TrainerSeconds:
    return TrainerSeconds(
        **{each.name: getattr(end, each.name) - getattr(start, each.name) for each in fields(TrainerTotals)}
    )


def _difference(start: Mapping[Cause, float], end: Mapping[Cause, float]) -> dict[Cause, float]:
    return {cause: end[cause] - start[cause] for cause in end}


def _ledger(columns: Columns, end: Totals) -> TokenLedger:
    """Finished samples by what became of their group; of the others what their engine has made of them so far."""
    lengths = np.where(columns.is_finished, columns.length_tokens, 0).reshape(-1, columns.group_size).sum(axis=1)
    outcomes = (TRAINED, DROPPED, FILTERED, QUEUED, OPEN)
    tokens = {each: int(lengths[columns.group_outcome == each].sum()) for each in outcomes}
    return TokenLedger(
        generated=sum(engine.tokens for engine in end.engines),
        trained=tokens[TRAINED],
        dropped=tokens[DROPPED],
        filtered=tokens[FILTERED],
        queued=tokens[QUEUED],
        awaiting_group=tokens[OPEN],
        in_flight=_tokens_in_flight(columns, end),
    )


def _tokens_in_flight(columns: Columns, end: Totals) -> int:
    """Tokens before the last preemption, and one a pass since the last admission of those that run."""
    begun = np.flatnonzero(~columns.is_finished & (columns.engine >= 0))
    before = int((columns.length_tokens - columns.left_tokens)[begun].sum())
    runs = begun[columns.start_pass[begun] >= 0]
    passes = np.array([engine.passes for engine in end.engines])[columns.engine[runs]]
    return before + int((passes - columns.start_pass[runs]).sum())
