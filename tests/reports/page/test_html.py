import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from rlscope.analysis.result import Finding
from rlscope.reports.card import NO_GAPS
from rlscope.reports.charts.series import MARKS_MAX, drawable
from rlscope.reports.page import html as html_module
from rlscope.reports.page.html import packed, render, with_code
from rlscope.reports.sections import sections_of
from rlscope.reports.text import findings
from rlscope.reports.text.origin import about
from tests.reports.analysis_fixture import (
    STARTED_NS,
    empty_analysis,
    full_analysis,
    hostile_analysis,
    without_frames,
)

VOID = {"meta", "link", "img", "br", "hr", "input"}


def unpacked(spec):
    """The chart with a row for each mark, as the page's script makes it."""
    return spec | {"datasets": {name: rows_of(rows) for name, rows in spec["datasets"].items()}}


def rows_of(columns):
    if isinstance(columns, list):
        return columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class Page(HTMLParser):
    """Fails on a tag that does not close; keeps texts, ids, references and the chart specs."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.ids, self.links, self.texts, self.specs = [], [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            if self.open[-1][1].get("id", "").endswith("-spec"):
                self.specs.append(unpacked(json.loads(data)))
        elif self.open and self.open[-1][0] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


@cache
def page_of(make):
    """The page of an analysis, which many tests read."""
    return render(make())


@pytest.fixture(scope="module")
def full():
    return Page(page_of(full_analysis))


@pytest.mark.parametrize("make", [full_analysis, empty_analysis, hostile_analysis, without_frames])
def test_every_tag_closes_and_every_id_is_there_once(make):
    page = Page(page_of(make))
    assert len(page.ids) == len(set(page.ids))


def test_a_chart_keeps_its_rows_when_it_is_packed():
    rows = [{"a": 1, "b": "<"}, {"a": None, "b": "x"}]
    spec = json.dumps({"mark": "bar", "datasets": {"whole": rows, "uneven": [{"a": 1}, {"b": 2}], "none": []}})
    text = packed(spec)
    assert "<" not in text and '"a":[1,null]' in text
    assert unpacked(json.loads(text)) == json.loads(spec)


def test_every_finding_is_there_with_its_remedy_and_a_link(full):
    framework = full_analysis().run.settings.get("framework")
    for number, finding in enumerate(full_analysis().findings, start=1):
        assert findings.title(finding) in full.text
        assert findings.sentence(finding) in full.text
        assert findings.remedy(finding, (), framework).replace("`", "") in full.text
        assert f"#finding-{number}" in full.links and f"finding-{number}" in full.ids


def test_an_alarm_comes_before_the_headline(full):
    gaps = dict.fromkeys(("gap", "early_gap", "late_gap", "fresh_tokens", "seen_versions"), 0.5)
    wrong = Finding("weights_not_applied", "critical", None, gaps, None, None)
    text = Page(render(replace(without_frames(), findings=(wrong,)))).text
    assert text.index("The samplers do not run the trained policy") < text.index("Trainers wait for samples")
    assert "The samplers do not run the trained policy" not in full.text


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"framework": "trl", "model": {"name": "Qwen/Qwen3-8B", "layers": 36}}, ("trl", "model: Qwen/Qwen3-8B")),
        ({"framework": None, "model": {"name": 8}}, ()),
        ({"model": "Qwen3"}, ()),
    ],
)
def test_the_framework_and_the_model_stand_beside_the_run_where_its_settings_have_them(settings, names):
    analysis = without_frames()
    analysis = replace(analysis, run=replace(analysis.run, settings=settings))
    assert about(analysis)[4:] == names
    head = render(analysis).partition("</header>")[0]
    assert tuple(re.findall(r"<span>(.*?)</span>", head))[4:] == names


def test_every_link_stays_on_the_page_and_the_policy_allows_nothing_from_outside(full):
    for link in full.links:
        assert link == "data:," or (link.startswith("#") and link[1:] in full.ids)
    policy = next(a["content"] for tag, a in full.tags if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy and "http" not in policy and "unsafe-eval" not in policy


def test_every_chart_has_a_description_and_its_numbers_as_a_table(full):
    assert len(full.specs) == 9
    for spec in full.specs:
        assert spec["description"] and spec["width"] == "container"
    assert sum(attributes.get("class") == "numbers" for _, attributes in full.tags) == len(full.specs)


def test_a_missing_frame_says_why_there_is_no_picture():
    page = Page(page_of(without_frames))
    assert page.specs == []
    assert "Queue and weight updates: no queue depth was recorded" in page.text
    assert "queue" not in page.ids and "ledger" in page.ids, "a section without anything to show is left out"


def test_the_answers_come_in_the_order_of_a_readers_questions_and_the_rest_folds():
    sections = [(section.anchor, bool(section.folded)) for section in sections_of(full_analysis())]
    order = ["workers", "changes", "findings", "staleness", "engines", "lengths", "queue", "layouts"]
    assert sections[: len(order)] == [(anchor, False) for anchor in order]
    assert all(folds for _, folds in sections[len(order) :])


def test_the_gaps_come_before_every_section(full):
    assert full.text.index("The data has 5 gaps") < full.text.index("Worker timelines")
    whole = Page(page_of(empty_analysis)).text
    assert "The data has" not in whole and NO_GAPS in whole


def test_coarsening_keeps_means_and_maxima():
    buckets = 4 * MARKS_MAX
    starts_ns = [STARTED_NS + n * 10**9 for n in range(buckets)]
    columns = {"bucket_start_ns": starts_ns, "depth_mean_samples": 1.0, "depth_max_samples": range(buckets)}
    frame = pl.DataFrame(columns).with_columns(queue=pl.lit("samples"))
    rows = drawable(frame, STARTED_NS)
    assert rows.height <= MARKS_MAX
    assert rows["depth_mean_samples"].unique().to_list() == [1.0]
    assert rows["depth_max_samples"].max() == buckets - 1
    assert rows["bucket_start_s"][0] == 0 and rows["bucket_end_s"][-1] == buckets


def test_nan_is_left_out_of_the_charts():
    analysis = full_analysis()
    broken = analysis.answers["throughput"].with_columns(trained_tokens_per_s=pl.lit(float("nan")))
    page = Page(render(replace(analysis, answers={**analysis.answers, "throughput": broken})))
    assert not re.search(r"\bNaN\b", json.dumps(page.specs))


def test_the_libraries_are_bundled_once_and_taken_from_the_cache_only_whole_and_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(html_module.vl_convert, "javascript_bundle", lambda: made.append("") or "vega()\r\n")
    assert [html_module._bundle(), html_module._bundle()] == ["vega()\r\n", "vega()\r\n"]
    (kept,) = (tmp_path / "rlscope").iterdir()
    assert (len(made), kept.name[:5]) == (1, "vega-")
    kept.write_bytes(kept.read_bytes()[:-3])
    assert html_module._bundle() == "vega()\r\n" and len(made) == 2
    monkeypatch.setattr("os.getuid", lambda: -1)
    assert html_module._bundle() == "vega()\r\n" and len(made) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/no")
    assert html_module._bundle() == "vega()\r\n" and len(made) == 4


def test_what_stands_between_backticks_is_code_and_everything_else_stays_text(full):
    assert with_code("see `rlscope doctor`, <b> and `") == "see <code>rlscope doctor</code>, &lt;b&gt; and `"
    assert with_code("`<i>`") == "<code>&lt;i&gt;</code>"
    assert "`" not in full.text
