"""The rule file against Prometheus' own checker, and its names and the dashboard's against a scrape of the hooks."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlscope.alerts.config import RULE_FILE, built_in_rules, rules_of
from rlscope.alerts.metrics import METRICS, AlertMetric
from rlscope.alerts.prometheus import BUCKETS, Expressed, Inexpressible, as_rule_file, express
from rlscope.alerts.prometheus import dashboard as dashboard_text
from rlscope.alerts.types import Rule, RuleSet, RuleWindow
from rlscope.input_file import parse_source

PROMTOOL = shutil.which("promtool")


def needs_promtool(test: Callable[..., None]) -> Callable[..., None]:
    is_missing = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: apt-get install prometheus")
    return pytest.mark.services(is_missing(test))


RULE = '[[rules]]\nname = "r"\nwindow = "5m"\n'
WORKER = 'rlscope_run_id="monday", rlscope_worker_id="w0", rlscope_role="trainer"'
SAMPLER = WORKER.replace("trainer", "sampler").replace("w0", "s0")
JUDGE = WORKER.replace("trainer", "auxiliary").replace("w0", "j0")
STARTED = (f"rlscope_train_steps_total{{{WORKER}}}", "100+1x60")
GPUS = (f"rlscope_worker_gpus{{{WORKER}}}", "4x60")
SAMPLER_GPUS = (f"rlscope_worker_gpus{{{SAMPLER}}}", "4x60")

Series = tuple[str, str]


def rules(text: str, warm_up_steps: int = 3) -> RuleSet:
    return rules_of(parse_source(f"warm_up_steps = {warm_up_steps}\n{text}", "rules.toml", RULE_FILE))


def rule(metric: str, condition: str, **more: object) -> Rule:
    fields = "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
    return rules(f'{RULE}metric = "{metric}"\n{condition}\n{fields}').rules[0]


def beyond(metric: AlertMetric) -> str:
    """A condition that the metric can meet and whose threshold ends a bucket."""
    return "above = 0.5" if metric.unit == "ratio" else "above = 4"


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def time_of(state: str, per_minute_s: float, who: str = WORKER, reason: str = "") -> Series:
    labels = f'{who}, rlscope_state="{state}"' + (f', rlscope_wait_reason="{reason}"' if reason else "")
    return f"rlscope_worker_time_seconds_total{{{labels}}}", f"0+{per_minute_s}x60"


def tokens(bucket: str, per_minute: int) -> Series:
    return f'rlscope_train_staleness_total{{{WORKER}, rlscope_staleness="{bucket}"}}', f"0+{per_minute}x60"


def heartbeat(who: str) -> Series:
    return f"rlscope_worker_heartbeat_seconds{{{who}}}", "0+60x60"


def level(name: str, value: float, who: str = WORKER, more: str = "") -> Series:
    return f"{name}{{{who}{more}}}", f"{value}x60"


SAMPLES = ', rlscope_queue="samples"'
CASES: tuple[tuple[str, str, list[Series], list[Series]], ...] = (
    ("idle.trainer_ratio", "above = 0.3",
     [GPUS, time_of("wait", 18.6, reason="samples")], [GPUS, time_of("wait", 17.4, reason="samples")]),
    ("idle.trainer_ratio", "above = 0.3",  # Waits for other reasons add up, work does not.
     [GPUS, time_of("wait", 12, reason="samples"), time_of("wait", 7, reason="weights")],
     [GPUS, time_of("wait", 12, reason="samples"), time_of("train", 48)]),
    ("idle.trainer_ratio", "above = 0.3",  # Workers weigh by their GPUs; samplers do not weigh.
     [GPUS, time_of("wait", 30), level("rlscope_worker_gpus", 2, WORKER.replace("w0", "w1"))],
     [GPUS, time_of("wait", 30), level("rlscope_worker_gpus", 12, WORKER.replace("w0", "w1"))]),
    ("idle.trainer_ratio", "below = 0.1", [GPUS, time_of("train", 60)], [GPUS, time_of("wait", 6.6)]),
    ("idle.sampler_ratio", "above = 0.3",
     [SAMPLER_GPUS, time_of("wait", 18.6, SAMPLER)],
     [SAMPLER_GPUS, time_of("wait", 17.4, SAMPLER), time_of("wait", 60)]),
    ("weight_update.gpu_ratio", "above = 0.15",
     [GPUS, SAMPLER_GPUS, time_of("weight_update", 12), time_of("wait", 6.6, SAMPLER, "weights")],
     [GPUS, SAMPLER_GPUS, time_of("weight_update", 12), time_of("wait", 5.4, SAMPLER, "weights"),
      time_of("wait", 60, SAMPLER, "requests")]),
    ("staleness.tokens.p95", "above = 4",
     [tokens("0", 949), tokens("5-8", 51)], [tokens("0", 951), tokens("3-4", 100), tokens("5-8", 49)]),
    ("staleness.tokens.p95", "above = 4.5",
     [tokens("0", 949), tokens("33+", 51)], [tokens("0", 951), tokens("33+", 49)]),
    ("staleness.tokens.p50", "above = 0", [tokens("0", 490), tokens("1", 510)], [tokens("0", 510), tokens("1", 490)]),
    ("staleness.tokens.p99", "below = 3",
     [tokens("2", 9920), tokens("3-4", 80)], [tokens("2", 9880), tokens("3-4", 120)]),
    ("staleness.tokens.max", "above = 32",
     [tokens("0", 9999), tokens("33+", 1)], [tokens("0", 9999), tokens("17-32", 9)]),
    ("staleness.tokens.max", "below = 1", [tokens("0", 9999)], [tokens("0", 9999), tokens("1", 1)]),
    ("staleness.tokens.mean", "above = 2",
     [tokens("0", 900), (f"rlscope_train_token_age_total{{{WORKER}}}", "0+1809x60")],
     [tokens("0", 900), (f"rlscope_train_token_age_total{{{WORKER}}}", "0+1791x60")]),
    ("queue.depth", "above = 10",  # Two looked into the same queue; another queue is emptier.
     [level("rlscope_queue_depth", 9, more=SAMPLES), level("rlscope_queue_depth", 12, SAMPLER, SAMPLES)],
     [level("rlscope_queue_depth", 9, more=SAMPLES), level("rlscope_queue_depth", 11, SAMPLER, SAMPLES)]),
    ("queue.used_ratio", "above = 0.9",
     [level("rlscope_queue_depth", 10, more=SAMPLES), level("rlscope_queue_capacity", 11, more=SAMPLES)],
     [level("rlscope_queue_depth", 9, more=SAMPLES), level("rlscope_queue_capacity", 10, more=SAMPLES)]),
    ("kv.used_ratio", "above = 0.95",
     [level("rlscope_engine_kv_used", 96, SAMPLER), level("rlscope_engine_kv_capacity", 100, SAMPLER)],
     [level("rlscope_engine_kv_used", 95, SAMPLER), level("rlscope_engine_kv_capacity", 100, SAMPLER)]),
    ("running.per_engine", "below = 8",
     [level("rlscope_engine_running", 7, SAMPLER), level("rlscope_engine_running", 8, WORKER)],
     [level("rlscope_engine_running", 7, SAMPLER), level("rlscope_engine_running", 9, WORKER)]),
    ("running.per_engine", "below = 8",  # The engine of a judge is none of the policy's.
     [level("rlscope_engine_running", 7, SAMPLER), level("rlscope_engine_running", 99, JUDGE)],
     [level("rlscope_engine_running", 9, SAMPLER), level("rlscope_engine_running", 1, JUDGE)]),
    ("kv.used_ratio", "above = 0.95",
     [level("rlscope_engine_kv_used", 96, SAMPLER), level("rlscope_engine_kv_capacity", 100, SAMPLER),
      level("rlscope_engine_kv_used", 1, JUDGE), level("rlscope_engine_kv_capacity", 100, JUDGE)],
     [level("rlscope_engine_kv_used", 95, SAMPLER), level("rlscope_engine_kv_capacity", 100, SAMPLER),
      level("rlscope_engine_kv_used", 99, JUDGE), level("rlscope_engine_kv_capacity", 100, JUDGE)]),
    ("waiting.requests", "above = 8",
     [level("rlscope_engine_waiting", 9, SAMPLER)], [level("rlscope_engine_waiting", 8, SAMPLER)]),
    ("throughput.trained_tokens_per_s", "below = 10",
     [tokens("0", 594), (f"rlscope_train_steps_total{{{WORKER}}}", "0+10x60")],
     [tokens("0", 606), (f"rlscope_train_steps_total{{{WORKER}}}", "0+10x60")]),
    ("step.period_s", "above = 15",
     [(f"rlscope_train_steps_total{{{WORKER}}}", "0+3x60")], [(f"rlscope_train_steps_total{{{WORKER}}}", "0+5x60")]),
    ("worker.silent_s", "above = 60",
     [level("rlscope_worker_heartbeat_seconds", 1730), (f"rlscope_worker_heartbeat_seconds{{{SAMPLER}}}", "0+60x60")],
     [level("rlscope_worker_heartbeat_seconds", 1750), (f"rlscope_worker_heartbeat_seconds{{{SAMPLER}}}", "0+60x60")]),
    ("worker.silent_s", "above = 60",  # Killed: no longer scraped, while others of its run are, or are not.
     [(f"rlscope_worker_heartbeat_seconds{{{WORKER}}}", "0 60 120 stale"),
      (f"rlscope_worker_heartbeat_seconds{{{SAMPLER}}}", "0+60x60")],
     [(f"rlscope_worker_heartbeat_seconds{{{WORKER}}}", "0 60 120 stale"),
      (f"rlscope_worker_heartbeat_seconds{{{SAMPLER}}}", "0 60 120 stale")]),
    ("worker.silent_s", "above = 60",  # Said that it stopped, once, before it left the scrapes.
     [(f"rlscope_worker_heartbeat_seconds{{{WORKER}}}", "0 60 120 stale"),
      (f"rlscope_worker_heartbeat_seconds{{{SAMPLER}}}", "0+60x60"),
      level("rlscope_worker_stopped_seconds", 150, WORKER.replace("w0", "w1"))],
     [(f"rlscope_worker_heartbeat_seconds{{{WORKER}}}", "0 60 120 stale"),
      (f"rlscope_worker_heartbeat_seconds{{{SAMPLER}}}", "0+60x60"),
      (f"rlscope_worker_stopped_seconds{{{WORKER}}}", "_ _ _ 150 stale")]),
    ("step.overdue_periods", "above = 10",  # At the 30th minute; the heartbeat of an engine says nothing of steps.
     [heartbeat(WORKER), level("rlscope_train_last_step_seconds", 1199), level("rlscope_train_period_seconds", 60)],
     [heartbeat(WORKER), level("rlscope_train_last_step_seconds", 1200), level("rlscope_train_period_seconds", 60)]),
    ("step.overdue_periods", "above = 10",  # Not while the trainer is not heard of, nor where no period is known.
     [heartbeat(WORKER), level("rlscope_train_last_step_seconds", 10), level("rlscope_train_period_seconds", 60)],
     [heartbeat(SAMPLER), level("rlscope_train_last_step_seconds", 10), level("rlscope_train_period_seconds", 60)]),
    ("rows.dropped_ratio", "above = 0.01",
     [level("rlscope_rows_dropped_total", 11), level("rlscope_rows_written_total", 989)],
     [level("rlscope_rows_dropped_total", 10), level("rlscope_rows_written_total", 990)]),
)  # fmt: skip


def unit_test(series: list[Series], fires: bool, minute: int = 30, alert: str = "r") -> dict[str, object]:
    extra = [] if any(name.startswith("rlscope_train_steps") for name, _ in series) else [STARTED]
    expected = [{}] if fires else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in (*series, *extra)],
        "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": expected}],
    }


def fired(folder: Path, held: RuleSet, series: list[Series], minute: int = 30) -> set[str]:
    """The rules that fire in Prometheus after so many minutes of these series."""
    (folder / "rules.yml").write_text(as_rule_file(held))
    quiet = [unit_test(series, False, minute, each.name) for each in held.rules]
    firing: set[str] = set()
    for each, test in zip(held.rules, quiet, strict=True):
        document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
        (folder / "test.yml").write_text(yaml.safe_dump(document))
        done = promtool("test", "rules", folder / "test.yml")
        if "SUCCESS" in done.stdout:
            continue
        assert "got:[" in done.stdout + done.stderr, done.stdout + done.stderr
        firing.add(each.name)
    return firing


@needs_promtool
@pytest.mark.parametrize(("metric", "condition", "loud", "quiet"), CASES)
def test_a_rule_fires_on_one_side_of_its_threshold_and_not_on_the_other(
    metric: str, condition: str, loud: list[Series], quiet: list[Series], tmp_path: Path
) -> None:
    held = RuleSet((rule(metric, condition),))
    assert (fired(tmp_path, held, loud), fired(tmp_path, held, quiet)) == ({"r"}, set())


def test_every_metric_is_held_by_a_case_or_has_a_reason_why_prometheus_cannot_hold_it() -> None:
    cases = {metric for metric, _, _, _ in CASES}
    for metric in METRICS:
        how = express(rule(metric.name, beyond(metric)))
        assert isinstance(how, Expressed if metric.name in cases else Inexpressible), metric.name
        assert isinstance(how, Expressed) or not how.reason.startswith("the hooks export no metric"), metric.name


@needs_promtool
@pytest.mark.parametrize(("steps", "names"), [(2, set()), (3, {"r"})])
def test_nothing_fires_while_the_run_warms_up(steps: int, names: set[str], tmp_path: Path) -> None:
    held = RuleSet((rule("idle.trainer_ratio", "above = 0.3"),))
    series = [GPUS, time_of("wait", 60), level("rlscope_train_steps_total", steps)]
    assert fired(tmp_path, held, series) == names


@needs_promtool
@pytest.mark.parametrize(("per_minute", "names"), [(19, set()), (21, {"r"})])
def test_a_rule_about_tokens_wants_enough_of_them(per_minute: int, names: set[str], tmp_path: Path) -> None:
    held = RuleSet((rule("staleness.tokens.p95", "above = 4", min_evidence=100),))
    assert fired(tmp_path, held, [tokens("5-8", per_minute)]) == names


DROPPING = [level("rlscope_rows_dropped_total", 50), level("rlscope_rows_written_total", 50)]


@needs_promtool
@pytest.mark.parametrize(("kind", "names"), [("hint", {"dropping"}), ("alarm", {"dropping", "r"})])
def test_hints_are_held_back_while_the_data_is_bad(kind: str, names: set[str], tmp_path: Path) -> None:
    held = rules(
        '[[rules]]\nname = "dropping"\nkind = "data_quality"\nmetric = "rows.dropped_ratio"\nabove = 0.01\n'
        f'{RULE}metric = "idle.trainer_ratio"\nabove = 0.3\nkind = "{kind}"\n'
    )
    assert fired(tmp_path, held, [GPUS, time_of("wait", 60), *DROPPING]) == names


@needs_promtool
@pytest.mark.parametrize(("minute", "names"), [(10, set()), (11, {"r"}), (24, {"r"}), (25, set())])
def test_for_and_keep_firing_for_are_prometheus_own(minute: int, names: set[str], tmp_path: Path) -> None:
    given = rule("queue.depth", "above = 10", **{"for": "5m", "keep_firing_for": "5m"})
    held = RuleSet((replace(given, window=RuleWindow(60 * 10**9)),))
    # Over the window, the depth is above 10 from the sixth minute to the nineteenth.
    series = [(f"rlscope_queue_depth{{{WORKER}{SAMPLES}}}", "0x4 11x14 0x40")]
    assert fired(tmp_path, held, series, minute) == names


@needs_promtool
def test_promtool_takes_the_built_in_rules_and_one_of_every_metric(tmp_path: Path) -> None:
    every = "".join(
        f'[[rules]]\nname = "{metric.name} \\"odd\\" (a|b)\\\\"\nmetric = "{metric.name}"\n{beyond(metric)}\n'
        f'kind = "{kind}"\n'
        'annotations = { summary = "{{{{ {{ }} {{{value} {worst} {threshold} {window} {for} {evidence}{run}" }\n'
        for number, metric in enumerate(METRICS)
        for kind in ["data_quality" if number % 2 else "hint"]
    )
    for number, held in enumerate((built_in_rules(), rules(every))):
        path = tmp_path / f"{number}.yml"
        path.write_text(as_rule_file(held))
        done = promtool("check", "rules", path)
        assert done.returncode == 0, done.stdout + done.stderr
        written = [each["alert"] for each in yaml.safe_load(path.read_text())["groups"][0]["rules"]]
        left = [line for line in path.read_text().splitlines() if line.startswith("# Not expressible")]
        assert len(written) + len(left) == len(held.rules)
        assert written == [each.name for each in held.rules if isinstance(express(each), Expressed)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('sql = "SELECT 1 AS at_ns, 2 AS value"\nabove = 1\n', "it is SQL over the trace"),
        ('metric = "queue.depth"\nabove = 1\n', "its window is a number of steps; Prometheus windows are times"),
        (
            'metric = "staleness.tokens.p95"\nabove = 3\nwindow = "5m"\n',
            "the hooks count tokens in staleness buckets that end at 0, 1, 2, 4, 8, 16, 32, not at 3",
        ),
        (
            'metric = "staleness.tokens.p95"\nbelow = 4\nwindow = "5m"\n',
            "the hooks count tokens in staleness buckets that end at 0, 1, 2, 4, 8, 16, 32, not at 3",
        ),
    ],
)
def test_a_rule_that_prometheus_cannot_hold_is_a_comment_with_the_reason(text: str, reason: str) -> None:
    window_text = "" if "window" in text or "sql" in text else 'window = "20 steps"\n'
    held = rules(f'[[rules]]\nname = "a\\nb"\n{text}{window_text}')
    subject = held.rules[0].metric or "SQL rule"
    comment = f"# Not expressible in PromQL: a b ({subject}): {reason}. `rlscope watch` evaluates it."
    assert comment in as_rule_file(held).splitlines()
    assert yaml.safe_load(as_rule_file(held))["groups"][0]["rules"] == []


def test_annotations_carry_the_value_in_its_unit_and_a_quantile_its_threshold() -> None:
    held = rules(
        RULE
        + 'metric = "idle.trainer_ratio"\nabove = 0.3\nannotations = { s = "{value} of {run} > {threshold}" }\n'
        + RULE.replace('"r"', '"q"')
        + 'metric = "staleness.tokens.p95"\nabove = 8\nannotations = { s = "{value}, {worker}" }\n'
    )
    written = [each["annotations"]["s"] for each in yaml.safe_load(as_rule_file(held))["groups"][0]["rules"]]
    assert written == [
        "{{ $value | humanizePercentage }} of {{ $labels.rlscope_run_id }} > 30.0%",
        "more than 8 versions, {{ $labels.rlscope_worker_id }}",
    ]


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[str]:
    """What Prometheus reads from the hooks, over loopback."""
    import prometheus_client
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from rlscope_otel import start_run

    provider = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1")
    options = {"meter_provider": provider, "run_id": "monday", "kv_capacity_tokens": 100}
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
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
                yield answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        provider.shutdown()


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\brlscope_[a-z0-9_]+", text))


def test_every_metric_label_and_bucket_of_rules_and_dashboard_is_one_that_the_hooks_export(scraped: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    exported = {sample.name for sample in samples} | {label for sample in samples for label in sample.labels}
    expressions = [
        how.condition for each in METRICS if isinstance(how := express(rule(each.name, beyond(each))), Expressed)
    ]
    assert len(expressions) > 10
    dashboard = json.loads(dashboard_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert len(panels) > 10 and len(asked) == 1
    assert names_in("\n".join([*expressions, *panels, *asked])) - exported == set()
    shown = {target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]}
    assert set(re.findall(r"{{(\w+)}}", "".join(shown))) - exported == set()
    buckets = [
        sample.labels["rlscope_staleness"] for sample in samples if sample.name == "rlscope_train_staleness_total"
    ]
    assert set(buckets) == {name for _, name in BUCKETS}


def test_the_dashboard_is_json_with_panels_that_do_not_overlap() -> None:
    dashboard = json.loads(dashboard_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in dashboard["panels"]}) > 10
    assert all(panel["targets"] and panel["description"] for panel in dashboard["panels"])
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"source", "run"}


@needs_promtool
def test_every_expression_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    panels = json.loads(dashboard_text())["panels"]
    expressions = [target["expr"].replace("$__rate_interval", "1m") for panel in panels for target in panel["targets"]]
    group = {"name": "g", "rules": [{"record": f"r{number}", "expr": text} for number, text in enumerate(expressions)]}
    (tmp_path / "r.yml").write_text(yaml.safe_dump({"groups": [group]}))
    done = promtool("check", "rules", tmp_path / "r.yml")
    assert done.returncode == 0, done.stdout + done.stderr
