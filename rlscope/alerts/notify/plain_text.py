"""A message as text for a person: a title, and a line for each alert."""

from rlscope.alerts.alert import Alert
from rlscope.alerts.notify.message import Message
from rlscope.report.numbers import counted, duration, gpu_time, instant


def title(message: Message) -> str:
    """What it is about in one line: [FIRING 2] starved_trainer, run monday."""
    firing = sum(alert.end_ns is None for alert in message.alerts)
    head = f"FIRING {firing}" if firing else "RESOLVED"
    rules = ", ".join(dict.fromkeys(alert.rule for alert in message.alerts))
    runs = ", ".join(dict.fromkeys(alert.labels["run"] for alert in message.alerts if "run" in alert.labels))
    return f"[{head}] {rules}" + (f", run {runs}" if runs else "")


def lines(message: Message, max_alerts: int) -> list[str]:
    """A line for each alert, and one for those beyond max_alerts."""
    shown = [_line(alert) for alert in message.alerts[:max_alerts]]
    left = len(message.alerts) - len(shown)
    return [*shown, f"and {counted(left, 'alert', 'alerts')} more"] if left else shown


def _line(alert: Alert) -> str:
    text = alert.annotations.get("summary") or alert.annotations.get("description") or alert.rule
    state = alert.severity if alert.end_ns is None else "resolved"
    facts = [f"since {instant(alert.start_ns)}"]
    if alert.end_ns is not None:
        facts.append(f"for {duration((alert.end_ns - alert.start_ns) / 1e9)}")
    if alert.cost_gpu_s is not None:
        facts.append(f"cost {gpu_time(alert.cost_gpu_s)}")
    return f"{state}: {text} ({', '.join(facts)})"
