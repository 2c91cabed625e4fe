"""The Grafana dashboard: its names are those of a scrape of the hooks, and its expressions are PromQL."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

PROMTOOL = shutil.which("promtool")
DASHBOARD: Any = json.loads((files("rlscope.alerts") / "grafana.json").read_text(encoding="utf-8"))
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[str]:
    """What Prometheus reads from the hooks."""
    import prometheus_client
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from rlscope_otel import start_run

    provider = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
    options: Any = {"meter_provider": provider, "run_id": "monday", "kv_capacity_tokens": 100}
    options["config"] = {"max_staleness": 4}
    try:
        with start_run(tmp_path, "trainer", "w0", **options) as run:
            for number in (1, 2, 3):
                with run.train_step(number, version_in=0):
                    pass
            with run.wait("samples"), run.train_step(4, version_in=0) as step:
                step.record(importance=[(bucket, 10, 10.0, 10.0) for bucket in (0, 1, 2, 3, 5, 9, 17, 33)])
            with run.publish_weights(1):
                pass
            run.engine_step(0, 1, running=3, waiting=2, decode_tokens=5, kv_used_tokens=7)
            run.queue_depth("samples", 3, capacity=8)
            run.delivery("s", "trained")
            assert run.flush()
            ended = start_run(tmp_path, "sampler", "w1", **options)
            ended.stop()
            yield prometheus_client.generate_latest().decode()
    finally:
        provider.shutdown()


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\brlscope_[a-z0-9_]+", text))


def test_every_metric_and_label_of_the_dashboard_is_one_that_the_hooks_export(scraped: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    exported = {sample.name for sample in samples} | {label for sample in samples for label in sample.labels}
    asked = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert len(EXPRESSIONS) > 10 and len(asked) == 1
    assert names_in("\n".join([*EXPRESSIONS, *asked])) - exported == set()
    shown = {target["legendFormat"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert set(re.findall(r"{{(\w+)}}", "".join(shown))) - exported == set()


@pytest.mark.services
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: apt-get install prometheus")
def test_every_expression_is_promql(tmp_path: Path) -> None:
    expressions = [text.replace("$__rate_interval", "1m") for text in EXPRESSIONS]
    group = {"name": "g", "rules": [{"record": f"r{number}", "expr": text} for number, text in enumerate(expressions)]}
    (tmp_path / "r.yml").write_text(yaml.safe_dump({"groups": [group]}))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(tmp_path / "r.yml")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
