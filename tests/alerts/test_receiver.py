import re
from pathlib import Path

import pytest

from rlscope.alerts.config import RULE_FILE, rules_in
from rlscope.alerts.receiver import Receiver, holds_secret
from rlscope.errors import RuleError, SecretError
from rlscope.input_file import parse_source

HUSH = "T0SECRETSECRETSECRET"


def read(text: str) -> tuple[Receiver, ...]:
    return rules_in(parse_source(text, "/rules/rules.toml", RULE_FILE)).receivers


def test_a_receiver_of_each_kind_is_read_with_what_it_does_not_say_filled_in() -> None:
    found = read("""
[[receivers]]
name = "hook"
kind = "webhook"
url = "http://127.0.0.1:9999/alerts"
token_file = "token"
severity = "critical"
timeout = "3s"
interval = "1m30s"
repeat = "4h"
send_resolved = false
[[receivers]]
name = "manager"
kind = "alertmanager"
url_env = "ALERTMANAGER_URL"
token_env = "ALERTMANAGER_TOKEN"
[[receivers]]
name = "chat"
kind = "apprise"
url_file = "/run/secrets/slack"
[[receivers]]
name = "own"
kind = "command"
command = ["logger", "-t", "rlscope"]
""")
    assert found == (
        Receiver(
            name="hook", kind="webhook", url="http://127.0.0.1:9999/alerts",
            token_file="/rules/token", severity="critical", timeout_s=3.0,
            interval_s=90.0, repeat_s=14400.0, send_resolved=False,
        ),
        Receiver(
            name="manager", kind="alertmanager", url_env="ALERTMANAGER_URL",
            token_env="ALERTMANAGER_TOKEN", interval_s=0.0, repeat_s=60.0,
        ),
        Receiver(name="chat", kind="apprise", url_file="/run/secrets/slack"),
        Receiver(name="own", kind="command", command=["logger", "-t", "rlscope"]),
    )  # fmt: skip
    assert (found[3].severity, found[3].timeout_s, found[3].interval_s, found[3].repeat_s) == ("info", 10.0, 30.0, None)


HEAD = '[[receivers]]\nname = "a"\n'
WEBHOOK, APPRISE, COMMAND = (f'{HEAD}kind = "{kind}"\n' for kind in ("webhook", "apprise", "command"))
CHAT = APPRISE + 'url_env = "U"\n'
LIST = "a non-empty list of non-empty strings"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (HEAD, "[0].kind", "kind: found no such key; expected one of 'webhook', 'alertmanager'"),
        (HEAD + 'kind = "pager"', "[0].kind", "found 'pager'"),
        (WEBHOOK, "[0]", "found no url; expected url or url_env or url_file"),
        (WEBHOOK + 'url_env = "U"\nurl_file = "f"', "[0]", "found url_env and url_file"),
        (WEBHOOK + f'url = "ftp://h/{HUSH}"', "[0].url", "an http or https URL"),
        (WEBHOOK + f'url = "http://u:{HUSH}@h/"', "[0].url", "so name it under url_env or url_file"),
        (WEBHOOK + f'url = "http://h/{HUSH}"', "[0].url", "seems to hold one"),
        (APPRISE + f'url = "https://hooks.slack.com/services/{HUSH}"', "[0].url", "under url_env or url_file"),
        (APPRISE + 'url = "https://h/"', "[0].url", "found url in a receiver of kind 'apprise'; expected one of url_e"),
        (APPRISE + f'url_env = "https://h/{HUSH}"', "[0].url_env", "environment variable, not the secret itself"),
        (WEBHOOK + f'url_env = "U"\ntoken = "{HUSH}"', "[0].token", "Did you mean 'token_env'?"),
        (WEBHOOK + 'url_env = "U"\ntoken_env = "T"\ntoken_file = "f"', "[0]", "both token_env"),
        (CHAT + 'token_env = "T"', "[0].token_env", "found token_env in a receiver of kind 'apprise'"),
        (CHAT + "timeout = 5", "[0].timeout", "found 5; expected a whole number with a unit"),
        (CHAT + 'timeout = "0s"', "[0].timeout", "a duration above 0s"),
        (CHAT + 'severity = "loud"', "[0].severity", "one of 'info', 'warning', 'critical'"),
        (CHAT + 'send_resolved = "no"', "[0].send_resolved", "true or false"),
        (COMMAND + 'command = "rm -rf"', "[0].command", LIST),
        (COMMAND + f'command = ["run", ["{HUSH}"]]', "[0].command[1]", "command[1]: found a value that is hidden"),
        (APPRISE + f'url_env = ["{HUSH}"]', "[0].url_env", "url_env: found a value that is hidden"),
        (COMMAND + "command = []", "[0].command", LIST),
        (COMMAND, "[0]", "found no command; expected command"),
        (CHAT * 2, "[1].name", "a name of its own"),
        ('receivers = "a"', "", "a list of tables"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_no_secret_is_repeated(text: str, key: str, words: str) -> None:
    with pytest.raises(RuleError) as caught:
        read(text)
    said = str(caught.value)
    assert HUSH not in said
    assert said.startswith(f"/rules/rules.toml, receivers{key}: found ") and words in said, said


@pytest.mark.parametrize(
    ("url", "is_secret"),
    [
        ("http://alertmanager-0.monitoring.svc:9093/api/v2/alerts", False),
        ("http://10.0.0.1:8080/hooks/rl-training", False),
        ("https://user@host/", True),
        ("https://host/?token=1", True),
        ("https://host/#1", True),
        ("https://discord.com/api/webhooks/123456789012345678/abcDEF123456789012", True),
        ("https://host/abcdefgh1234567", False),
        ("https://host/abcdefgh12345678", True),
    ],
)
def test_an_address_that_reads_like_a_secret_is_taken_for_one(url: str, is_secret: bool) -> None:
    assert holds_secret(url) == is_secret


def test_a_secret_is_read_when_it_is_needed_and_the_receiver_names_only_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(f" {HUSH}\n")
    monkeypatch.setenv("THE_URL", HUSH)
    known = Receiver(name="a", kind="webhook", url_env="THE_URL", token_file=str(path))
    assert known.address() == known.token() == HUSH
    assert HUSH not in f"{known} {Receiver(name='a', kind='webhook', url=HUSH)!r}"
    path.write_text("")
    with pytest.raises(SecretError, match="an empty file"):
        known.token()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SecretError, match="no text"):
        known.check_secrets()
    path.unlink()
    with pytest.raises(SecretError, match="No such file"):
        known.token()


def test_the_receivers_of_the_documentation_are_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
    found = read(page.split("```toml")[1].split("```")[0])
    assert [each.kind for each in found] == ["webhook", "alertmanager", "apprise", "command"]
    table = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert table == {"severity", "interval", "repeat", "send_resolved", "timeout"}
