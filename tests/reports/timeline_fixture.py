"""An analysis with the frames of the workers' timeline: as many workers as asked, in lanes of their own or shared."""

from dataclasses import replace

from rlscope.analysis.result import AnalysisResult
from tests.reports.analysis_fixture import DURATION_S, answer, at_ns, full_analysis

LANES = 64
WORST = 16
PARTS = 42
STATES = (("decoding", None), ("no_requests", "environment"), ("applying_weights", None), ("unattributed", None))
WORST_STRETCH_S = (300, 360)


def timeline_analysis(workers: int = 5, *, updates: int = 30, parts: int = PARTS) -> AnalysisResult:
    """The full analysis of the other fixture, and what a timeline needs: a trainer and so many samplers less one."""
    names = ["trainer-0", *(f"sampler-{n}" for n in range(workers - 1))]
    alone = workers <= LANES
    lanes = [(name, 1) for name in names] if alone else [(None, -(-workers // LANES))] * LANES
    end = (0, DURATION_S)
    rows = _rows("all", lanes, end, parts) + _rows("worst_stretch", lanes, WORST_STRETCH_S, 6)
    if not alone:
        rows += _rows("worst_workers", [(name, 1) for name in names[1 : WORST + 1]], end, parts)
    marks = [("publish", None, at_ns(40 + 30 * n), 1, n + 1) for n in range(updates)]
    marks += [("apply", names[-1], at_ns(42 + 30 * n), 1, n + 1) for n in range(updates)]
    analysis = full_analysis()
    frames = {"worker_timeline": answer("worker_timeline", rows), "weight_marks": answer("weight_marks", marks)}
    return replace(analysis, answers={**analysis.answers, **frames})


def _rows(
    view: str, lanes: list[tuple[str | None, int]], stretch_s: tuple[int, int], parts: int
) -> list[tuple[object, ...]]:
    from_s, to_s = stretch_s
    part_s = (to_s - from_s) // parts
    return [
        (view, lane, "trainer" if lane == 0 and view != "worst_workers" else "sampler", worker, count, lane / 100,
         at_ns(from_s + part * part_s), at_ns(from_s + (part + 1) * part_s), *STATES[(lane + part) % len(STATES)],
         0.5 + (lane + part) % 5 / 10, part_s * 10**9)
        for lane, (worker, count) in enumerate(lanes)
        for part in range(parts)
    ]  # fmt: skip
