"""What the fuzzer has found, each made as small as it would go.

`open` says why a case still fails; the test then expects it to fail, and says so when it does not.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """Steps that once failed."""

    steps: tuple[str, ...]
    open: str = ""


_T = "CREATE TABLE t (i1 integer PRIMARY KEY, i2 integer, text1 varchar)"
_U = "CREATE TABLE u (i1 integer, text1 varchar)"

CASES: dict[str, Case] = {
    # Spark was asked to select nothing at all, which is no SQL.
    "rollup without an aggregate": Case(
        (
            _T,
            "CREATE MATERIALIZED VIEW v1 WITH (refresh_policy = 'incremental') AS "
            "SELECT text1 AS o0 FROM t GROUP BY ROLLUP (text1)",
            "CREATE MATERIALIZED VIEW v2 WITH (refresh_policy = 'full') AS "
            "SELECT text1 AS o0, i2 AS o1 FROM t GROUP BY CUBE (text1, i2)",
            "INSERT INTO t VALUES (1, 1, 'a'), (2, 1, NULL), (3, 2, 'a')",
            "-- flush",
            "DELETE FROM t",
            "-- flush",
        )
    ),
    # Rows were looked up once for 0.0 and once more for -0.0.
    "both zeros among the keys": Case(
        (
            "CREATE TABLE t (i1 integer PRIMARY KEY, float1 double precision)",
            "CREATE TABLE u (float1 double precision, text1 varchar)",
            "INSERT INTO t VALUES (1, '0.0'), (2, '-0.0')",
            "INSERT INTO u VALUES ('0.0', 'a'), ('-0.0', 'b')",
            "-- flush",
            "CREATE MATERIALIZED VIEW v1 WITH (refresh_policy = 'incremental') AS "
            "SELECT a1.i1 AS o0, a2.text1 AS o1 FROM t a1 JOIN u a2 ON a1.float1 = a2.float1",
            "CREATE MATERIALIZED VIEW v2 WITH (refresh_policy = 'incremental') AS "
            "SELECT float1 AS o0, count(*) AS o1 FROM t GROUP BY float1",
            "CREATE MATERIALIZED VIEW v3 WITH (refresh_policy = 'incremental') AS "
            "SELECT i1 AS o0, row_number() OVER (PARTITION BY float1 ORDER BY i1) AS o1 FROM t",
            "INSERT INTO t VALUES (3, '0.0'), (4, '-0.0')",
            "INSERT INTO u VALUES ('0.0', 'c'), ('-0.0', 'd')",
            "-- flush",
        )
    ),
    "exists that depends on no row": Case(
        (
            _T,
            _U,
            "INSERT INTO t VALUES (1, 1, 'a')",
            "CREATE MATERIALIZED VIEW v1 WITH (refresh_policy = 'incremental') AS "
            "SELECT i1 AS o0 FROM t WHERE EXISTS (SELECT 1 FROM u s WHERE s.text1 = 'b')",
            "CREATE MATERIALIZED VIEW v2 WITH (refresh_policy = 'incremental') AS "
            "SELECT i1 AS o0 FROM t WHERE NOT EXISTS (SELECT 1 FROM u s WHERE s.text1 = 'b')",
            "CREATE MATERIALIZED VIEW v3 WITH (refresh_policy = 'incremental') AS "
            "SELECT i1 AS o0 FROM t WHERE EXISTS (SELECT 1 FROM u s LIMIT 1)",
            "-- flush",
            "INSERT INTO u VALUES (1, 'b')",
            "-- flush",
            "INSERT INTO t VALUES (2, 1, 'a')",
            "-- flush",
            "DELETE FROM u",
            "-- flush",
        )
    ),
}
