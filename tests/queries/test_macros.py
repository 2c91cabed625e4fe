"""The macros that stand for something that DuckDB also does, only slower."""

from tests.case_files import open_empty


def test_a_row_is_in_the_quarter_that_ntile_puts_it_in() -> None:
    connection = open_empty()
    for rows in range(1, 14):
        ordered = f"SELECT place, ntile(4) OVER (ORDER BY place) AS quarter FROM range(1, {rows + 1}) AS one(place)"
        others = connection.sql(f"SELECT * FROM ({ordered}) WHERE quarter IS DISTINCT FROM quarter_of(place, {rows})")
        assert others.fetchall() == [], rows
