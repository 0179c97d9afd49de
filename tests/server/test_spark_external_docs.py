"""docs/spark-data-sources.md is run as it stands, against a real server."""

import re
from pathlib import Path
from urllib.parse import urlparse

import pytest

from cdc_kit import FILL, ORDERS, server, upstream  # noqa: F401  fixtures
from external_source_kit import assert_both_ways, tuples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-data-sources.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(300)
def test_the_examples_do_what_the_page_says(spark, upstream, tmp_path, monkeypatch, capsys):  # noqa: F811
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(500))
    upstream.db.execute("CREATE TABLE customers (id int PRIMARY KEY)")
    upstream.db.execute("INSERT INTO customers VALUES (1), (2)")
    monkeypatch.setenv("SHOP_PASSWORD", "does not matter here")
    password = tmp_path / "password"
    password.write_text("does not matter here")
    address = urlparse(upstream.url)
    names = {"spark": spark}
    for block in BLOCK.findall(PAGE.read_text()):
        said = block
        for written, meant in (
            ("db.example.com", address.hostname), ('"5432"', f'"{address.port}"'),
            ('"follower"', f'"{address.username}"'), ('"shop"', f'"{address.path[1:]}"'),
            ("/data/", f"{tmp_path}/"),
            # The workers of this session began before the variable was set.
            ('"password.env": "SHOP_PASSWORD"', f'"password.file": "{password}"'),
        ):  # fmt: skip
            said = said.replace(written, str(meant))
        exec(compile(said, str(PAGE), "exec"), names)
    names["query"].awaitTermination()
    assert capsys.readouterr().out.strip() == "500"
    theirs = upstream.rows("SELECT * FROM orders")
    assert_both_ways(tuples(spark.read.parquet(f"{tmp_path}/orders").toArrow()), theirs)
    assert spark.read.parquet(f"{tmp_path}/customers").count() == 2
    changes = spark.read.parquet(f"{tmp_path}/order_changes")
    assert {row["_change_type"] for row in changes.collect()} == {"insert"}
    rows = changes.select(*names["orders"].columns).toArrow()
    assert_both_ways(tuples(rows), theirs)
    upstream.rows("SELECT pg_drop_replication_slot('orders_to_lake')")
    upstream.db.execute("DROP PUBLICATION orders_to_lake")
