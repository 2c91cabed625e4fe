"""The alert rules and the metrics of the hooks for Prometheus and Grafana.

`grafana.json` is a dashboard as Grafana imports it (Dashboards, New, Import). It asks for a Prometheus data source and
shows one run.
"""

from importlib.resources import files


def dashboard() -> str:
    """The Grafana dashboard of the metrics that the hooks export, as JSON."""
    return (files("rlscope.alerts.export") / "grafana.json").read_text(encoding="utf-8")
