"""PostgreSQL's JDBC driver against the real server: as BI tools and DBeaver connect."""

import os
import shutil
import subprocess
from pathlib import Path

from pgwire_kit import served
from servers import not_available

PROBE = """
import java.sql.*;

public class Probe {
    public static void main(String[] args) throws Exception {
        try (Connection c = DriverManager.getConnection(args[0], "root", "")) {
            System.out.println(c.getMetaData().getDatabaseProductVersion());
            try (Statement s = c.createStatement(); ResultSet r = s.executeQuery("rows 3")) {
                ResultSetMetaData m = r.getMetaData();
                System.out.println(m.getColumnTypeName(1) + " " + m.getColumnTypeName(2));
                while (r.next()) System.out.println(r.getLong(1) + "|" + r.getString(2));
            }
            java.time.Instant at = java.time.Instant.parse("2024-01-01T00:00:00.5Z");
            String text = "echo(int8,text,numeric,bool,float8,timestamptz,int4[]) ? ? ? ? ? ? ?";
            try (PreparedStatement p = c.prepareStatement(text)) {
                for (int turn = 0; turn < 8; turn++) {  // After five it is prepared by name.
                    p.setLong(1, Long.MIN_VALUE + turn);
                    p.setString(2, "a\\u00e4'" + turn);
                    p.setBigDecimal(3, new java.math.BigDecimal("-12.50"));
                    p.setBoolean(4, true);
                    p.setDouble(5, Double.NEGATIVE_INFINITY);
                    p.setTimestamp(6, Timestamp.from(at));
                    p.setArray(7, c.createArrayOf("int4", new Object[] {1, null, turn}));
                    try (ResultSet r = p.executeQuery()) {
                        r.next();
                        String row = r.getLong(1) + "|" + r.getString(2) + "|" + r.getBigDecimal(3)
                            + "|" + r.getBoolean(4) + "|" + r.getDouble(5)
                            + "|" + r.getTimestamp(6).toInstant() + "|"
                            + java.util.Arrays.toString((Object[]) r.getArray(7).getArray());
                        System.out.println(row);
                    }
                }
            }
            c.setAutoCommit(false);
            try (Statement s = c.createStatement()) {
                s.setFetchSize(100);
                int seen = 0;
                try (ResultSet r = s.executeQuery("rows 1050")) { while (r.next()) seen++; }
                System.out.println("fetched " + seen);
            }
            c.commit();
            c.setAutoCommit(true);
            try (Statement s = c.createStatement()) {
                s.execute("fail");
            } catch (SQLException e) {
                System.out.println(e.getSQLState());
            }
        }
    }
}
"""


def driver() -> str:
    found = os.environ.get("PGJDBC_JAR", "/usr/share/java/postgresql.jar")
    if not Path(found).exists():
        not_available("PostgreSQL's JDBC driver is not installed (PGJDBC_JAR names its jar)")
    if shutil.which("java") is None:
        not_available("java is not installed")
    return found


def test_jdbc(tmp_path):
    jar = driver()
    (tmp_path / "Probe.java").write_text(PROBE)
    with served() as place:
        url = f"jdbc:postgresql://{place.host}:{place.port}/dev"
        got = subprocess.run(
            ["java", "-Xmx256m", "-Duser.timezone=Asia/Tokyo", "-Dfile.encoding=UTF-8",
             "-cp", jar, str(tmp_path / "Probe.java"), url],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )  # fmt: skip
        fetches = place.world.seen.count("rows 1050")
    assert got.returncode == 0, got.stderr[-2000:]
    lines = got.stdout.splitlines()
    assert lines[0].startswith("14.0")
    assert lines[1] == "int8 varchar"
    assert lines[2:5] == ["0|name 0", "1|name 1", "2|name 2"]
    for turn in range(8):
        assert lines[5 + turn] == (
            f"{-(2**63) + turn}|aä'{turn}|-12.50|true|-Infinity|2024-01-01T00:00:00.500Z"
            f"|[1, null, {turn}]"
        )
    assert lines[13:] == ["fetched 1050", "42601"]
    assert fetches == 1
