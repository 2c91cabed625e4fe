"""A real Alertmanager on loopback, between us and a webhook of its own."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlscope.alerts.notify.couriers import Couriers
from rlscope.alerts.notify.message import Message
from rlscope.alerts.notify.senders import webhook_payload
from tests.alerts.notify.given import S, alert, receiver
from tests.alerts.notify.listener import Listener
from tests.waiting import until

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(ALERTMANAGER is None, reason="alertmanager is missing: apt-get install prometheus-alertmanager"),
]
CONFIG = """
route:
  receiver: hook
  group_by: [run]
  group_wait: 0s
  group_interval: 200ms
receivers:
- name: hook
  webhook_configs:
  - url: {url}
"""


@pytest.fixture
def manager(listener: Listener, tmp_path: Path) -> Iterator[str]:
    """The address of an Alertmanager that posts to the listener."""
    (tmp_path / "config.yml").write_text(CONFIG.format(url=listener.url))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    options = {
        "config.file": tmp_path / "config.yml",
        "storage.path": tmp_path / "data",
        "web.listen-address": f"{address[0]}:{address[1]}",
        "cluster.listen-address": "",
        "log.level": "error",
    }
    command = [str(ALERTMANAGER), *(f"--{name}={value}" for name, value in options.items())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with socket.socket() as dialed:
                until(lambda: dialed.connect_ex(address) == 0)
            yield f"http://{address[0]}:{address[1]}"
        finally:
            process.kill()


def test_alertmanager_takes_our_alerts_firing_and_resolved_and_its_own_payload_looks_like_ours(
    manager: str, listener: Listener
) -> None:
    now_ns = time.time_ns()
    couriers = Couriers([receiver("alertmanager", manager, interval_s=0.0, repeat_s=60.0)])
    firing = alert("starved", start_ns=now_ns - 5 * S)
    couriers.take([firing], now_ns)
    couriers.dispatch(now_ns)
    until(lambda: len(listener.bodies) == 1)
    until(lambda: couriers.collect(now_ns))
    assert (couriers.troubles, couriers.waiting) == ((), 0)

    resolved = alert("starved", start_ns=now_ns - 5 * S, end_ns=now_ns)
    couriers.take([resolved], now_ns + S)
    couriers.dispatch(now_ns + S)
    until(lambda: listener.bodies[-1]["status"] == "resolved")

    first, last = listener.bodies[0], listener.bodies[-1]
    assert (first["status"], first["alerts"][0]["status"]) == ("firing", "firing")
    for theirs, each in ((first, firing), (last, resolved)):
        ours = webhook_payload(Message("hook", (each,), now_ns))
        assert theirs.keys() == ours.keys()
        assert theirs["alerts"][0].keys() == ours["alerts"][0].keys()  # type: ignore[index]
        for key in ("version", "status", "receiver", "groupLabels", "commonLabels", "commonAnnotations", "groupKey"):
            assert theirs[key] == ours[key], key
        assert theirs["alerts"][0]["labels"] == ours["alerts"][0]["labels"]  # type: ignore[index]
