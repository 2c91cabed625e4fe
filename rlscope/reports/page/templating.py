"""The template engine and the files beside the templates: style sheets, scripts, settings of the charts."""

from functools import cache
from importlib import resources
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

CHART_CONFIG: Final = "chart_config.json"
"""How every chart looks, live or still."""


def filled(template: str, **words: object) -> str:
    """The template with its words; every string among them is escaped."""
    return _environment().get_template(template).render(**words)


@cache
def asset(name: str) -> str:
    """The text of a file of ours."""
    return resources.files("rlscope.reports").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("rlscope.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
