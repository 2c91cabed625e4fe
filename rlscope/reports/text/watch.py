"""A run in progress: the blocks of its screen, and the lines that `rlscope watch` prints without a terminal."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rlscope import format as fmt
from rlscope.alerts.live.facts import LiveFacts, LiveView, SideState
from rlscope.analysis.ledger import AUXILIARY_ROLE, TRAINER_ROLES
from rlscope.analysis.result import SEVERITIES, Alert, Finding
from rlscope.diagnose.straggling_engine import Straggler
from rlscope.format import printable
from rlscope.reports.blocks import Bar, Bars, Block, Bullets, Callout, Fact, Facts, Paragraph, Part
from rlscope.reports.text import causes, phases
from rlscope.reports.text.findings import sentence
from rlscope.reports.text.states import role_order, state_label, state_of

# Often enough to see progress, rarely enough for a log kept for days.
_STATUS_EVERY_NS: Final = 60_000_000_000
_MOST_STATES: Final = 3
"""States of a role in a line."""
_MOST_BARS: Final = 5
"""States of a role on a screen."""


def fact_rows(facts: LiveFacts, now_ns: int) -> list[tuple[str, str]]:
    """The current facts as names and values; missing ones say so."""
    newest_ns = facts.newest_ns
    newest = "none" if newest_ns is None else f"{fmt.duration(max(0, now_ns - newest_ns) / 1e9)} ago"
    return [
        ("verdict", _verdict(facts)),
        ("steps", _steps(facts)),
        ("trained", fmt.tokens_per_second(facts.trained_tokens_per_s)),
        ("staleness", _staleness(facts)),
        ("batch", _batch(facts)),
        ("KV cache", fmt.percent(facts.kv_used_ratio)),
        ("queue", _of(facts.queue_depth_samples, "samples")),
        *([("slow engine", _straggler(facts.straggler))] if facts.straggler else []),
        ("newest data", newest),
    ]


def side_words(side: SideState) -> str:
    """One role in a line: its size and its main states."""
    doing = ", ".join(f"{state_label(name, None)} {fmt.percent(ratio)}" for name, ratio in _largest(side, _MOST_STATES))
    return f"{side_name(side)}: {doing or fmt.NO_DATA}"


def _largest(side: SideState, most: int) -> list[tuple[str, float]]:
    """Return the states that take most of the role's time, with their shares."""
    return sorted(side.state_ratios.items(), key=lambda item: -item[1])[:most]


def side_name(side: SideState) -> str:
    """A role with its numbers of workers and GPUs."""
    return f"{fmt.counted(side.workers, side.role)}, {fmt.counted(side.gpu_count, 'GPU')}"


def sides_of(facts: LiveFacts) -> Sequence[SideState]:
    """The roles in the order of the report."""
    return sorted(facts.sides, key=lambda side: role_order(side.role))


def alert_words(alert: Alert, now_ns: int) -> str:
    """One alert: its rule, its summary, and how long it has fired."""
    end_ns = alert.end_ns if alert.end_ns is not None else now_ns
    text = alert.annotations.get("summary") or alert.annotations.get("description") or "firing"
    return f"{alert.rule}: {text} (for {fmt.duration((end_ns - alert.start_ns) / 1e9)})"


def silence_words(facts: LiveFacts) -> dict[str, str]:
    """One sentence for each silent worker."""
    return {
        worker: f"no data from {worker} for {fmt.duration(silent_s)}" for worker, silent_s in facts.silent_s.items()
    }


def stall_words(facts: LiveFacts) -> list[str]:
    """A sentence on who is stuck and who waits; empty if the run moves."""
    if facts.stall is None:
        return []
    return [sentence(Finding("stalled", "critical", None, facts.stall, None, None)).rstrip(".")]


def moment_ns(view: LiveView) -> int:
    """The time that durations are measured to, UTC epoch: now, or the end of a run that has ended."""
    return view.evaluated_ns if view.ended and view.evaluated_ns is not None else view.now_ns


def state_words(view: LiveView) -> str:
    """Whether the run has started, and whether it has ended."""
    if view.facts is None:
        return "waiting for the run to start"
    return f"run {view.facts.run_id}" + (" has ended" if view.ended else "")


def screen(view: LiveView) -> list[Block]:
    """Return what a terminal shows after one poll: firing alerts, facts, and the states of each role."""
    facts = view.facts
    silences = [*stall_words(facts), *silence_words(facts).values()] if facts is not None else []
    notes = [*silences, *view.troubles, *view.problems]
    head = Paragraph(f"{state_words(view)}  {fmt.instant(view.now_ns)}", "headline")
    told: list[Block] = [Bullets(notes)] if notes else []
    if facts is None:
        return [head, *told]
    rows = [Fact(name, value) for name, value in fact_rows(facts, moment_ns(view))]
    return [head, *_firing(view), *told, Facts(rows), *(_side(side) for side in sides_of(facts))]


def _firing(view: LiveView) -> list[Block]:
    # What fired until the end of the run stays on the last screen.
    firing = [alert for alert in view.alerts if alert.end_ns is None or view.ended]
    gravest = sorted(firing, key=lambda alert: -SEVERITIES.index(alert.severity))
    return [Callout(each.severity, alert_words(each, moment_ns(view))) for each in gravest] or [Paragraph("no alerts")]


def _side(side: SideState) -> Part:
    bars = [
        Bar(state_label(name, None), fmt.percent(ratio), ratio, kind=state_of(name).kind)
        for name, ratio in _largest(side, _MOST_BARS)
    ]
    return Part(side_name(side), [Bars(bars) if bars else Paragraph(fmt.NO_DATA, "note")])


class Lines:
    """Prints what changed since the last poll, and a status line once a minute, or at each poll."""

    def __init__(self, write: Callable[[str], None], *, each_look: bool = False) -> None:
        self._write = write
        self._status_every_ns = 0 if each_look else _STATUS_EVERY_NS
        self._status_ns: int | None = None
        self._state = ""
        self._firing: frozenset[str] = frozenset()
        self._said: Mapping[str, str] = {}

    def show(self, view: LiveView) -> None:
        """Print the changes of one poll."""
        now_ns = view.now_ns

        def say(text: str) -> None:
            # Text from the run never breaks a line.
            self._write(f"{fmt.instant(now_ns)} {printable(text)}")

        if (state := state_words(view)) != self._state:
            self._state, self._status_ns = state, None
            say(state)
        self._show_alerts(view, say)
        self._show_troubles(view, say)
        # The last look is shown a second time, with the outcome of the last messages.
        is_due = self._status_ns is None or now_ns - self._status_ns >= max(1, self._status_every_ns)
        if view.facts is not None and is_due:
            self._status_ns = now_ns
            rows = [f"{name} {value}" for name, value in fact_rows(view.facts, moment_ns(view))]
            say("; ".join([*rows, *map(side_words, sides_of(view.facts))]))

    def _show_alerts(self, view: LiveView, say: Callable[[str], None]) -> None:
        firing = {alert.fingerprint: alert for alert in view.alerts if alert.end_ns is None}
        for alert in view.alerts:
            if alert.end_ns is not None:
                say(f"resolved {alert.severity} {alert_words(alert, moment_ns(view))}")
        for fingerprint, alert in firing.items():
            if fingerprint not in self._firing:
                say(f"FIRING {alert.severity} {alert_words(alert, moment_ns(view))}")
        self._firing = frozenset(firing)

    def _show_troubles(self, view: LiveView, say: Callable[[str], None]) -> None:
        """Problems with the data or with notifications, once each, and their end, once each."""
        facts, words = view.facts, dict[str, str]()
        if facts is not None:
            words = {f"silent {worker}": said for worker, said in silence_words(facts).items()}
            words |= {f"silent {number} in a stall": said for number, said in enumerate(stall_words(facts))}
        # A problem is not printed again when only its count grows.
        words |= {f"data {re.sub(r'[0-9.,]+', '#', problem)}": problem for problem in view.problems}
        # Nor if its reason changes. The colon of an address has no space.
        words |= {f"trouble {trouble.split(': ')[0]}": trouble for trouble in view.troubles}
        for key, text in words.items():
            if key not in self._said:
                say(f"note: {text}")
        for key in self._said.keys() - words.keys():
            if key.startswith(("silent ", "trouble ")):
                say(f"cleared: {self._said[key]}")
        self._said = words


def _verdict(facts: LiveFacts) -> str:
    """Return the current bottleneck, over the interval that the facts cover."""
    verdict = facts.verdict
    if verdict is None:
        return fmt.NO_DATA
    label, words = causes.verdict_label(verdict.bottleneck), causes.headline(verdict, is_ranked=False)
    if verdict.unknown_reason is not None:
        return f"{label}: {verdict.unknown_reason}"
    lasting = fmt.duration((verdict.end_ns - verdict.start_ns) / 1e9)
    if verdict.waits_for_auxiliary:
        label, words = causes.OPEN_LABEL, f"{words}{causes.BESIDE_AUXILIARY}"
    if verdict.bottleneck == "samplers" and facts.hides_samplers:
        label = causes.OPEN_LABEL
    states = {state for side in facts.sides if side.role in TRAINER_ROLES for state in side.state_ratios}
    label, words = (causes.only_recorded(text, states) for text in (label, words))
    own = [side for side in facts.sides if side.role != AUXILIARY_ROLE]
    if verdict.bottleneck == "balanced" and [side.role for side in own] == ["colocated"]:
        longest = phases.by_share(own[0].state_ratios.items())[0]
        label, words = phases.label(longest), phases.headline(longest)
    return f"{label}. {words}, over the last {lasting}"


def _staleness(facts: LiveFacts) -> str:
    ages = facts.staleness
    if ages is None:
        return fmt.NO_DATA
    return f"mean {fmt.significant(ages.mean)}, p95 {ages.p95}, max {fmt.versions(ages.max)}"


def _steps(facts: LiveFacts) -> str:
    """Return the number of steps, and the age of the last one relative to the newest row.

    Relative to now, the time between two flushes would count too.
    """
    steps = fmt.count(facts.steps)
    if facts.last_step_end_ns is None or facts.newest_ns is None:
        return steps
    behind_s = max(0, facts.newest_ns - facts.last_step_end_ns) / 1e9
    return f"{steps}, the last ended {fmt.duration(behind_s)} before the newest data"


def _straggler(straggler: Straggler) -> str:
    own, median = map(fmt.tokens_per_second, (straggler.tokens_per_s, straggler.median_tokens_per_s))
    return f"{straggler.worker_id} generates {own}, the median engine {median}"


def _batch(facts: LiveFacts) -> str:
    if facts.running_per_engine is None and facts.waiting_requests is None:
        return fmt.NO_DATA
    return f"{_of(facts.running_per_engine, 'running')}, {_of(facts.waiting_requests, 'waiting')} per engine"


def _of(value: float | None, noun: str) -> str:
    return fmt.NO_DATA if value is None else f"{fmt.significant(value)} {noun}"
