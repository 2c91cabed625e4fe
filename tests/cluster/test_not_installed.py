"""`--ray` without Ray says what to install."""

import sys
from pathlib import Path

import pytest

import rlscope
from rlscope.cluster import on_ray
from rlscope.pipeline import say_nothing


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(rlscope.RlscopeError, match=r"--ray: found no ray.*pip install 'rlscope\[ray\]'"):
        on_ray("auto", say_nothing)


def test_without_an_address_one_process_answers() -> None:
    assert on_ray(None, say_nothing) is None
