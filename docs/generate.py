"""Write the generated pages and tables: trace format, findings, queries, metrics, frameworks, JSON and schemas.

`python docs/generate.py` writes them; with --check it fails if a page is out of date.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from rlscope_otel.journal import SUFFIX
from rlscope_otel.schema import FIRST_ROW_KEY, FORMAT_VERSION, KEYS, STAMP_KEYS, TABLES

from rlscope.alerts.metrics import METRICS
from rlscope.diagnose import RULES
from rlscope.document import VERSION
from rlscope.frameworks import frameworks
from rlscope.reports.check import CheckDocument
from rlscope.reports.documents.analysis import AnalysisDocument
from rlscope.reports.documents.comparison import CompareDocument
from rlscope.reports.documents.doctor import DoctorReport
from rlscope.reports.documents.plan import PlanDocument
from rlscope.reports.documents.what_if import WhatIfDocument
from rlscope.results import RunList
from rlscope.trace.config import entry_kind, run_config_schema
from rlscope.trace.questions import CONCATENATE, questions

DOCS = Path(__file__).parent
GENERATED = "<!-- Made by docs/generate.py. Edit the code that it reads instead. -->\n\n"
DOCUMENTS: Final[Mapping[str, tuple[type, str]]] = {
    "analysis": (AnalysisDocument, "rlscope analyze --json"),
    "what-if": (WhatIfDocument, "rlscope what-if --json"),
    "plan": (PlanDocument, "rlscope plan --json"),
    "check": (CheckDocument, "rlscope check --format json"),
    "compare": (CompareDocument, "rlscope compare --json"),
    "list": (RunList, "rlscope list --format json"),
    "doctor": (DoctorReport, "rlscope doctor --json"),
}
"""JSON documents and the commands that print them, by the names of their schemas."""


_TRACE_INTRODUCTION: Final = """# Trace format {version}

This page defines the files of a run folder: their names, tables, columns and settings.

A run is a folder with `run.json`, one `workers/<worker_id>.json` per worker, and one folder per table, with the files
`<table>/<worker_id>-<number>.parquet` and, while a worker records, `<table>/<worker_id>-<number>{suffix}`. It has
recorded facts only. Times are nanoseconds since the UTC epoch. Missing data is NULL, never 0. The schemas are in
`instrumentation/rlscope_otel/schema.py`.

Every time in a row is by the clock of the worker that recorded it, except `queued_ns` of `deliveries`: that time is by
the clock of the process that put the sample into the queue. [clocks.md](clocks.md) says how clock skew is corrected.

## Worker files

Every start of a recorder has its own worker file and `worker_id`. `name` is the requested name, which the starts of one
worker share, and `config` has the settings passed to the recorder. If trainers start again at a step that was recorded
before, **a reader uses only the last recording**. Otherwise all starts are one run. A `sample_id` that two starts used
stands for two samples: a delivery refers to the last of them that had finished.

Each flush replaces the file, even if there was no row to write. `last_flush_ns` therefore shows that a worker is alive,
and `open` what it is in the middle of: `doing` (an activity, `train`, or `publish`, `transfer` or `apply` of weights),
`since_ns`, and the `reason` of a wait, the `step` or the `version`.

## Journals and closed files

A recorder appends each flush to an open journal, one per worker and table. A journal is closed when it is large or old
enough, or when the recording ends: a Parquet file with its rows, in their order, gets its name, and the journal is
removed. The next journal has the next number, from 1 on. If both files are there, **a reader uses the Parquet file,
unless it is damaged**. If the last rows of a journal are also the first of the next, they count once.

A killed worker leaves its journals, and every command reads them. It loses the rows since its last flush
([measured](../benchmarks/kills.txt)). Flushes are not synced to the disk, but closed files are, so a power cut may also
cost what the operating system had not written yet.

A journal is an Arrow IPC stream. Its head is the schema of the table; its metadata states where the journal belongs
({stamp_keys}). The metadata of each record batch has a seal (`instrumentation/rlscope_otel/journal.py`): the number of
the batch's first row among all rows of the worker and table (from 0), its number of rows, the length of its message,
and the CRC-32 of the head and the message. **A reader stops at the first batch that is incomplete or does not match its
seal.**

A closed file has the same metadata, and the number of its first row in `{first_row_key}`. Each of its pages has a
checksum. The worker file states in `closed`, by table and number, the CRC-32 of each closed file before that file gets
its name, and in `rows`, by table, the number of rows that the worker has appended: a killed worker may have appended
more. [security.md](security.md) says how an analysis uses them.

Another program may write Parquet files alone, with any names and without metadata. Only their rows are counted.
"""


def trace_format_page() -> str:
    """Return the page of the trace format, from the Arrow schemas."""
    introduction = _TRACE_INTRODUCTION.format(
        version=FORMAT_VERSION,
        stamp_keys=", ".join(f"`{key}`" for key in STAMP_KEYS),
        first_row_key=FIRST_ROW_KEY,
        suffix=SUFFIX,
    )
    lines = [GENERATED, introduction]
    for table, columns in TABLES.items():
        lines.append(f"\n## {table}\n\n| column | type | unit | meaning |\n|---|---|---|---|\n")
        for column in columns:
            kind = str(column.type).replace("|", "\\|") + (", NULL allowed" if column.nullable else "")
            meaning = column.meaning.replace("|", "\\|")
            lines.append(f"| `{column.name}` | {kind} | {column.unit} | {meaning} |\n")
        key = ", ".join(f"`{name}`" for name in KEYS[table])
        lines.append(f"\nNo two rows share {key}.\n")
    return "".join([*lines, *_config_lines()])


def _config_lines() -> list[str]:
    """Return the lines about the entries of run.json's config that an analysis reads."""
    schema = run_config_schema()
    return [
        "\n## run.json: config\n\nThese settings come from `start_run(config=...)` and `run.add_config(...)`. All are"
        " optional; other entries are kept.\nIf a setting is missing, rlscope uses the value that the run shows, or a"
        " default that the report names.\n\n| entry | type | meaning |\n|---|---|---|\n",
        *(
            f"| `{name}` | {re.sub('^an? ', '', entry_kind(name, schema))} | {entry['description']} |\n"
            for name, entry in schema["properties"].items()
        ),
    ]


def findings_page() -> str:
    """Return the page of findings, from the docstrings of their modules."""
    lines = [GENERATED, _FINDINGS_INTRODUCTION]
    for rule in RULES:
        text = importlib.import_module(f"rlscope.diagnose.{rule.name}").__doc__ or ""
        listed = re.sub(r"^([A-Z][a-z]+): ", r"- **\1**: ", text.strip(), flags=re.MULTILINE)
        lines.append(f"\n## {rule.name}\n\n{listed}\n")
    return "".join(lines)


def queries_page() -> str:
    """Return the page of queries, from the headers of their files."""
    lines = [GENERATED, _QUERIES_INTRODUCTION]
    for question in questions().values():
        lines.append(
            f"\n## {question.name}\n\n{question.question} {question.grain[0].upper() + question.grain[1:]}.\n\n"
        )
        lines.append("| column | type | meaning |\n|---|---|---|\n")
        lines.extend(f"| `{out.name}` | {out.type} | {out.meaning} |\n" for out in question.outputs)
        if question.args:
            lines.append("\nArguments: " + "; ".join(f"`{arg.name}` {arg.meaning}" for arg in question.args) + ".\n")
    return "".join([*lines, *_partition_lines()])


_FINDINGS_INTRODUCTION: Final = """# Findings

This page lists the performance problems that `rlscope analyze` looks for.

The cost of a finding is the GPU time in which the problem was seen. It ranks the findings; it does not predict what a
repair saves. For predicted gains, see the actions.
"""

_QUERIES_INTRODUCTION: Final = """# Queries

This page lists the built-in queries. `rlscope query RUN_DIR NAME` runs one; the SQL is in `queries/`.

The table at the end says which queries `rlscope analyze --ray` answers in shares of the run, and how it merges their
answers ([large_runs.md](large_runs.md#clusters)).
"""


def _partition_lines() -> list[str]:
    """Return the lines about how each query is divided into shares, and how their answers are merged."""
    lines = [
        "\n## Shares of a run\n\n"
        "| partition | meaning |\n|---|---|\n"
        "| worker | each row of a table is in the share of its worker |\n"
        "| sample | each sample and its deliveries are in one share; every share has all training steps, weight updates"
        " and workers |\n"
        "| driver | the query reads the whole run |\n\n"
        "The merged answer equals the answer from the whole run to the last bit.\n\n"
        "| query | partition | merge |\n|---|---|---|\n"
    ]
    for question in questions().values():
        by_aggregate: dict[str, list[str]] = {}
        for name, aggregate in (question.merge or {}).items():
            by_aggregate.setdefault(aggregate, []).append(f"`{name}`")
        merged = "; ".join(f"{aggregate} of {', '.join(names)}" for aggregate, names in by_aggregate.items())
        merged = merged or ("" if question.merge is None else CONCATENATE)
        lines.append(f"| `{question.name}` | {question.partition} | {merged} |\n")
    return lines


_METRICS_INTRODUCTION: Final = """# Metrics of alert rules

This page lists the metrics for [alert rules](alerts.md). Over the whole run, each equals the number in the report; the
named query computes it. A window with less than the minimum evidence has no value.

| metric | unit | meaning | query | minimum evidence |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the page of the metrics of alert rules, from their list."""
    lines = [GENERATED, _METRICS_INTRODUCTION]
    for metric in METRICS:
        meaning = metric.meaning + ("" if metric.is_live else "; only after the run")
        noun = {"gpu_s": "GPU-second", "s": "second"}.get(metric.evidence, metric.evidence.removesuffix("s"))
        least = f"{metric.min_evidence:,} {noun}{'' if metric.min_evidence == 1 else 's'}"
        lines.append(f"| `{metric.name}` | {metric.unit} | {meaning} | `{metric.question}` | {least} |\n")
    return "".join(lines)


_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DESCRIBED: Final = ConfigDict(
    use_attribute_docstrings=True,
    json_schema_serialization_defaults_required=True,
    extra="forbid",
    arbitrary_types_allowed=True,
)


def published_schema(kind: type, name: str, command: str) -> JsonSchemaValue:
    """Return the JSON Schema of a document; `name` ends its identifier, and `command` prints it."""
    schema = _described(kind)
    # The docstrings are those of Python: what is None there is null here.
    parts = json.loads(re.sub(r"\bNone\b", "null", json.dumps(schema["$defs"])))
    root = {**parts.pop(kind.__name__), "title": command}
    return {"$schema": _DIALECT, "$id": f"urn:rlscope:{name}:{VERSION}", **root, "$defs": parts}


class _SchemaWriter(GenerateJsonSchema):
    """Generator of a JSON Schema without pydantic's titles and defaults."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False: titles would repeat the key."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema without its default: every key is always printed."""
        return self.generate_inner(schema["schema"])

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Return a number or null, because a number that is not finite is printed as null."""
        return self.get_union_of_schemas([{"type": "number"}, {"type": "null"}])

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return the schema with null as one of its alternatives."""
        inner = self.generate_inner(schema["schema"])
        return self.get_union_of_schemas([*inner.get("anyOf", [inner]), {"type": "null"}])

    def computed_field_schema(self, schema: core_schema.ComputedField) -> JsonSchemaValue:
        """Return the schema of the value, which a reader of the document sees as any other."""
        return self.generate_inner(schema["return_schema"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Return the schema of an object; inherited keys have the descriptions of the class that declares them."""
        written = super().dataclass_schema(schema)
        for base in schema["cls"].__mro__[1:]:
            described = _own_schema(base)["properties"] if is_dataclass(base) else {}
            for key, value in described.items():
                if "description" in value:
                    written["properties"][key].setdefault("description", value["description"])
        return written


@cache
def _own_schema(kind: type) -> JsonSchemaValue:
    return _described(kind)["$defs"][kind.__name__]


def _described(kind: type) -> JsonSchemaValue:
    # pydantic takes a configuration for a union, but not for a dataclass alone.
    either: Any = kind | None
    adapter = TypeAdapter[Any](either, config=_DESCRIBED)
    return adapter.json_schema(mode="serialization", schema_generator=_SchemaWriter)


def _schema(name: str) -> dict[str, Any]:
    kind, command = DOCUMENTS[name]
    return published_schema(kind, name, command)


def schema_text(name: str) -> str:
    """Return the JSON Schema of a document."""
    return json.dumps(_schema(name), indent=2) + "\n"


_JSON_INTRODUCTION: Final = """# JSON documents

This page lists the keys of the documents that the commands print for programs.

A document has every key; unknown values are null. Units are in the names: `_s` is seconds, `_ns` nanoseconds, `_ratio`
a share or a relative change (0.1 is 10%). Staleness is in policy versions. Within a `schema_version` keys are only
added, so validate a document with the schema of the version that printed it. A quantity with an interval is an
[Estimate](#estimate). The keys are the fields of the classes that the Python interface returns.

- **Measured**: `throughput.achieved_tokens_per_s`, `steady_tokens_per_s` and `generated_tokens_per_s`, `ledger`,
  `staleness`, and `gpu_s` of `verdict.losses`.
- **Modeled**: gains, intervals, probabilities and staleness of layouts and actions.
- **Both**: `tokens_per_s` of a layout or an action of a run is its modeled gain applied to the measured steady rate, so
  `recommendation.current.tokens_per_s` is that rate.

| printed by | keys | schema |
|---|---|---|
"""


def json_page() -> str:
    """Return the page of the JSON documents, from their schemas."""
    lines = [GENERATED, _JSON_INTRODUCTION]
    schemas = {name: _schema(name) for name in DOCUMENTS}
    for name, schema in schemas.items():
        lines.append(f"| `{schema['title']}` | [{name}](#{name}) | [schema](schema/{name}.schema.json) |\n")
    parts = {part: schema for document in schemas.values() for part, schema in document["$defs"].items()}
    lines += [_json_section(name, schema, parts) for name, schema in [*schemas.items(), *sorted(parts.items())]]
    return "".join(lines)


def _json_section(name: str, schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Return the lines about the keys of one object, or the values of an enum.

    `parts` has the objects that keys may refer to.
    """
    if "enum" in schema:
        return f"\n## {name}\n\n{schema['description']}\n\n{_json_type(schema)}.\n"
    lines = [f"\n## {name}\n\n{schema['description']}\n\n| key | type | meaning |\n|---|---|---|\n"]
    for key, value in schema["properties"].items():
        # A key with the description of its object has none of its own in the schema.
        meaning = value["description"] if "description" in value else parts[_part(value)]["description"]
        meaning = " ".join(meaning.split()).replace("|", "\\|")
        lines.append(f"| `{key}` | {_json_type(value)} | {meaning} |\n")
    return "".join(lines)


def _part(schema: Mapping[str, Any]) -> str:
    """Return the name of the object that a schema refers to."""
    return schema["$ref"].rpartition("/")[2]


def _json_type(schema: Mapping[str, Any]) -> str:
    """Return a type in words."""
    if "$ref" in schema:
        return f"[{_part(schema)}](#{_part(schema).lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_json_type, schema["anyOf"]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "prefixItems" in schema:
        return f"[{', '.join(map(_json_type, schema['prefixItems']))}]"
    if schema["type"] == "array":
        return f"list of {_json_type(schema['items'])}"
    if schema["type"] == "object":
        values = schema["additionalProperties"]
        return "object" if values is True else f"object of {_json_type(values)}"
    return schema["type"] if isinstance(schema["type"], str) else " or ".join(schema["type"])


FRAMEWORK_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "frameworks.md": {
        "Versions, staleness, caps": "caps",
        "Parts and waits": "parts",
        "Misleading metrics": "misleading",
    },
    "importers.md": {"Supported files": "files"},
}
"""Key under `docs` in the frameworks' tables, by page and heading."""


def page_of_tables(name: str) -> str:
    """Return a page written by hand, with the rows of its tables from the frameworks' tables."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for heading, key in FRAMEWORK_TABLES[name].items():
        start = text.index("|", text.index(f"## {heading}\n"))
        head, rule, *_ = text[start:].split("\n", 2)
        columns = [cell.strip() for cell in head.strip("|").split("|")]
        rows = [
            f"| {' | '.join({'framework': table.title.partition(' (')[0], **row}[each] for each in columns)} |"
            for table in frameworks()
            for row in table.docs.get(key, ())
        ]
        end = text.index("\n\n", start) if "\n\n" in text[start:] else len(text) - 1
        text = "\n".join([text[:start] + head, rule, *rows]) + text[end:]
    return text


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    **{name: partial(page_of_tables, name) for name in FRAMEWORK_TABLES},
    "trace-format.md": trace_format_page,
    "findings.md": findings_page,
    "queries.md": queries_page,
    "metrics.md": metrics_page,
    "json.md": json_page,
    **{f"schema/{name}.schema.json": partial(schema_text, name) for name in DOCUMENTS},
}


def main() -> int:
    """Write the pages, or with --check name the pages that are out of date."""
    stale = [name for name, page in PAGES.items() if _current(name) != page()]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/{name} is out of date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


def _current(name: str) -> str | None:
    path = DOCS / name
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
