"""TPC-H: all 22 queries plan without an opaque node and agree with PostgreSQL."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from headwater.sql.algebra import Opaque, Plan, inputs_of
from servers import not_available, postgres_server
from sql_kit import Pair, differences

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "sql"
SCHEMA = (GOLDEN / "tpch" / "schema.sql").read_text()
NUMBERS = range(1, 23)


def query(number: int) -> str:
    return (GOLDEN / "tpch" / f"q{number:02}.sql").read_text().strip().rstrip(";")


def generator() -> str | None:
    beside = Path(sys.executable).with_name("tpchgen-cli")
    return str(beside) if beside.exists() else shutil.which("tpchgen-cli")


@pytest.fixture(scope="module")
def pair(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    program = generator()
    if program is None:
        not_available("tpchgen-cli is not installed")
        return
    folder = tmp_path_factory.mktemp("tpch")
    subprocess.run(
        [program, "csv", "-s", "0.01", "-o", str(folder)],
        check=True, capture_output=True,
    )  # fmt: skip
    with postgres_server() as url:
        found = Pair(spark, url, SCHEMA)
        for (_, name), relation in found.relations._found.items():
            path = folder / f"{name}.csv"
            copy = f"copy {name} from stdin with (format csv, header true)"
            with found.connection.cursor() as cursor, cursor.copy(copy) as target:
                target.write(path.read_bytes())
            table = pyarrow.csv.read_csv(
                path,
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={each.name: each.type.arrow for each in relation.columns},
                    strings_can_be_null=False,
                ),
            ).select([each.name for each in relation.columns])
            frame = spark.createDataFrame(table)
            frame.coalesce(2).localCheckpoint().createOrReplaceTempView(f"sql_{relation.id}")
        found.connection.execute("analyze")
        yield found
        found.close()


def opaque(plan: Plan) -> list[str]:
    here = [plan.reason] if isinstance(plan, Opaque) else []
    return here + [reason for each in inputs_of(plan) for reason in opaque(each)]


@pytest.mark.parametrize("number", NUMBERS)
def test_the_same_rows(pair: Pair, number: int) -> None:
    text = query(number)
    plan = pair.plan(text, for_view=True).plan
    assert not opaque(plan)
    assert plan.key or number in ONE_ROW
    their_types, their_rows = pair.theirs(text)
    our_types, our_rows = pair.ours(text, for_view=True)
    assert our_types == their_types
    assert not (wrong := differences(our_rows, their_rows, digits=13)), "\n".join(wrong)
    assert len(their_rows) or number in EMPTY


ONE_ROW = {6, 14, 17, 19}
EMPTY = {18, 20}
"""Queries without rows at this scale."""
