"""A command of the user's own: Alertmanager's webhook payload comes as JSON on its standard input."""

import json
import os
import signal
import subprocess

from rlscope.alerts.notify.alertmanager_json import webhook_payload
from rlscope.alerts.notify.message import DeliveryError, Message
from rlscope.alerts.receiver import Receiver


def send(receiver: Receiver, message: Message) -> None:
    """Run the command once. Raises DeliveryError when it cannot start, fails, or outlives the time limit.

    What it prints goes nowhere: it may print what it was given to keep secret.
    """
    body = json.dumps(webhook_payload(message, receiver.max_alerts)).encode()
    quiet = subprocess.DEVNULL
    try:
        # A session of its own: the signal that ends the watch leaves it alone, and its children end with it.
        process = subprocess.Popen(
            receiver.argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )
    except OSError as error:
        raise DeliveryError(f"the command cannot be started ({error.strerror})") from None
    with process:
        try:
            process.communicate(body, timeout=receiver.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise DeliveryError("the command did not end in time") from None
    if process.returncode:
        raise DeliveryError(f"the command ended with status {process.returncode}")
