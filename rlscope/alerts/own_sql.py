"""The metric of a rule as the user's own SELECT: one row a moment, with the columns at_ns and value."""

from collections.abc import Mapping

import polars as pl

from rlscope.alerts.parts import Ticks
from rlscope.alerts.rule import RuleSet
from rlscope.errors import QueryError, RuleError
from rlscope.query import ask_own
from rlscope.store import Run


def own_answers(run: Run, rules: RuleSet, ticks: Ticks) -> Mapping[str, pl.DataFrame]:
    """The answers of the rules' SELECTs by rule, with the bucket of each row. Raises RuleError for one refused."""
    return {rule.name: _answer(run, rule.name, rule.sql, ticks) for rule in rules.rules if rule.sql is not None}


def _answer(run: Run, name: str, sql: str, ticks: Ticks) -> pl.DataFrame:
    try:
        answer = ask_own(run, sql)
    except QueryError as error:
        raise RuleError(f"rule {name!r}: {error}") from error
    kinds = {column: answer.schema.get(column) for column in ("at_ns", "value")}
    at_ns, value = kinds["at_ns"], kinds["value"]
    if at_ns is None or value is None or not at_ns.is_integer() or not (value.is_numeric() or value == pl.Null):
        raise RuleError.of(
            f"the SELECT of rule {name!r}",
            found="columns " + ", ".join(f"{column} {kind}" for column, kind in answer.schema.items()),
            expected="at_ns, a whole number of nanoseconds UTC, and value, a number",
            next_step="Name the columns with AS.",
        )
    rows = answer.select(pl.col("at_ns").cast(pl.Int64), pl.col("value").cast(pl.Float64)).drop_nulls()
    bucket = ((pl.col("at_ns") - ticks.origin_ns) // ticks.interval_ns).alias("bucket")
    return rows.filter(pl.col("value").is_finite()).with_columns(bucket).filter(pl.col("bucket") >= 0)
