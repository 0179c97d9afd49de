"""Plans, as EXPLAIN shows them, against golden files.

`python tests/unit/sql/test_plan_golden.py` writes them anew; the difference is for a reviewer.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from headwater.sql.algebra import Plan, inputs_of  # noqa: E402
from headwater.sql.explain import explain_plan  # noqa: E402
from headwater.sql.parse import parse_one  # noqa: E402
from headwater.sql.plan import plan_query  # noqa: E402
from sql_kit import query_cases, relations_of  # noqa: E402

GOLDEN = ROOT / "golden" / "sql"
FILES = [*sorted((GOLDEN / "tpch").glob("q*.sql")), GOLDEN / "queries.sql"]
TABLES = """
create table t (a int primary key, b varchar, c numeric(10,2), d date, e int[], f double precision);
create table u (a int, k int, x bigint, s varchar, ts timestamp, primary key (a, k));
create table v (id int primary key, a int, b varchar);
create table empty (a int primary key, b varchar);
"""


def plans(path: Path):
    ddl = (GOLDEN / "tpch" / "schema.sql").read_text() if path.parent.name == "tpch" else TABLES
    relations = relations_of(ddl)
    for text, _ in query_cases(str(path.relative_to(GOLDEN))):
        statement = parse_one(text)
        yield text, plan_query(statement.query, text, relations, for_view=True)


def shown(path: Path) -> str:
    return "\n\n".join(f"{text};\n{explain_plan(query)}" for text, query in plans(path)) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_plan_is_the_golden_one(path):
    assert shown(path) == path.with_suffix(".plan").read_text()


def columns_given_twice(plan: Plan) -> set[str]:
    """Columns that two inputs of one node give under the same name."""
    twice: set[str] = set()
    seen: set[str] = set()
    for each in inputs_of(plan):
        names = {output.name for output in each.outputs}
        if type(plan).__name__ == "Join":
            twice |= seen & names
        seen |= names
        twice |= columns_given_twice(each)
    return twice


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_plan_is_well_formed(path):
    for text, query in plans(path):
        assert not columns_given_twice(query.plan), text
        outputs = {output.name for output in query.plan.outputs}
        assert {name for _, name in query.visible} <= outputs, text
        assert set(query.plan.key) <= outputs, text


if __name__ == "__main__":
    for golden in FILES:
        golden.with_suffix(".plan").write_text(shown(golden))
