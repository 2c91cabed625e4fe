from rlscope.alerts.notify.senders import rfc3339, webhook_payload
from tests.alerts.notify.given import NOON_NS, alert, message

FIRING = alert("starved", 1.5, labels={"severity": "warning", "run": "monday", "side": "trainer"})
RESOLVED = alert("starved", 0, 30, labels={"severity": "warning", "run": "monday", "side": "sampler"})


def test_a_webhook_gets_alertmanager_s_payload_of_version_4() -> None:
    assert webhook_payload(message(FIRING, RESOLVED)) == {
        "version": "4",
        "groupKey": '{}:{run="monday"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "oncall",
        "groupLabels": {"run": "monday"},
        "commonLabels": {"alertname": "starved", "run": "monday", "severity": "warning"},
        "commonAnnotations": {"summary": "starved since long"},
        "externalURL": "",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "starved", "run": "monday", "severity": "warning", "side": "trainer"},
                "annotations": {"summary": "starved since long"},
                "startsAt": "2026-01-01T12:00:01.500000000Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "",
                "fingerprint": FIRING.fingerprint,
            },
            {
                "status": "resolved",
                "labels": {"alertname": "starved", "run": "monday", "severity": "warning", "side": "sampler"},
                "annotations": {"summary": "starved since long"},
                "startsAt": "2026-01-01T12:00:00.000000000Z",
                "endsAt": "2026-01-01T12:00:30.000000000Z",
                "generatorURL": "",
                "fingerprint": RESOLVED.fingerprint,
            },
        ],
    }


def test_a_group_is_resolved_once_all_of_its_alerts_are() -> None:
    assert webhook_payload(message(RESOLVED))["status"] == "resolved"


def test_times_keep_their_nanoseconds() -> None:
    assert rfc3339(NOON_NS + 1) == "2026-01-01T12:00:00.000000001Z"


def test_alerts_of_two_runs_and_odd_names_have_groups_of_their_own() -> None:
    odd, other = (alert(labels={"severity": "warning", "run": run}) for run in ('a"b', "c"))
    assert webhook_payload(message(odd))["groupKey"] == '{}:{run="a\\"b"}'
    assert webhook_payload(message(odd, other))["groupKey"] == "{}:{}"
