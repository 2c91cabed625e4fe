"""The blocks of docs/recording.md for verl and AReaL name what the installed versions have; they need GPUs to run."""

import importlib.util
import re

import pytest

from tests.recording_blocks import check_calls, commands_of, python_of

pytestmark = pytest.mark.frameworks


def test_the_command_of_verl_names_a_module_and_a_hook_that_exist() -> None:
    command = commands_of("verl")
    modules = re.findall(r"python -m ([\w.]+)", command) + re.findall(r"EXTERNAL_MODULES=([\w.]+)", command)
    assert len(modules) >= 3
    assert all(importlib.util.find_spec(name) for name in modules)


def test_the_call_of_areal_takes_these_arguments() -> None:
    assert check_calls(python_of("AReaL")) == 1
