"""The summary that the example prints at its end."""

from statistics import fmean

from examples.trl_async.counts import Counts

FEW = 5


def closing_lines(counts: Counts) -> str:
    """The figures of a run, as TRL logged them."""
    rewards = [entry["reward"] for entry in counts.logged if entry.get("reward") is not None]
    staleness = [entry["sample/staleness_mean"] for entry in counts.logged if entry.get("sample/staleness_mean")]
    return "\n".join(
        (
            f"steps: {counts.steps} in {counts.train_s:.1f} s",
            f"weight syncs: {counts.weight_syncs}",
            f"response tokens scored: {counts.tokens_generated}",
            f"reward, first and last {FEW} steps: {fmean(rewards[:FEW]):.2f}, {fmean(rewards[-FEW:]):.2f}",
            f"staleness by TRL's count: {fmean(staleness):.2f}" if staleness else "staleness by TRL's count: 0",
            f"samples dropped as stale: {counts.total('sample/dropped_stale_total'):.0f}",
        )
    )
