"""An archive of Spark's classes, with which its Java process starts in half the time.

Java can map classes that it has loaded and checked once from a file, instead of doing that at
every start. `python -m headwater.runtime.class_archive` makes the file for this Java and this
Spark: it runs a few queries and keeps what they have loaded. `start_spark` uses it where it
is there. Java itself checks that it fits, and does without it where it does not.
"""

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.config import Settings
from headwater.errors import HeadwaterError
from headwater.runtime.java import find_java_home, places_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_END_S = 180


def archive_options(java_home: Path) -> str:
    """The options under which Java uses the archive; none where there is no archive."""
    for path in _places(java_home):
        if path.exists():
            return f"-XX:SharedArchiveFile={path} {_QUIET}"
    return ""


def make_archive() -> Path:
    """Make the archive, unless it is there. Replay: it is there."""
    java_home = find_java_home()
    places = _places(java_home)
    for path in places:
        if path.exists():
            return path
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        fresh = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            _run(fresh)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        return path
    raise HeadwaterError(f"there is no place to write to: {', '.join(map(str, places))}")


def _places(java_home: Path) -> tuple[Path, ...]:
    """Where an archive for this Java and this Spark may be."""
    import pyspark  # noqa: PLC0415  the CLI must start fast

    package = Path(pyspark.__file__).parent
    release = java_home / "release"
    told = release.read_text() if release.exists() else str(java_home)
    # Java refuses an archive when a file that it was made of has changed.
    jars = sorted(f"{jar.name} {jar.stat().st_mtime_ns}" for jar in os.scandir(package / "jars"))
    parts = (told, pyspark.__version__, str(package), *jars)
    name = f"spark-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}.jsa"
    return places_of(name, os.environ)


def _run(path: Path) -> None:
    """Run queries of the kinds that we run, in a Java that writes its classes when it ends."""
    from pyspark import SparkContext  # noqa: PLC0415

    from headwater.runtime.spark import start_spark  # noqa: PLC0415

    options = f"-XX:ArchiveClassesAtExit={path} {_QUIET}"
    settings = Settings().change({"spark_master": "local[2]", "spark_java_options": options})
    spark = start_spark(settings, app="headwater class archive")
    with tempfile.TemporaryDirectory() as folder:
        _queries(spark, Path(folder))
    spark.stop()
    gateway: Any = SparkContext._gateway
    process = gateway.proc
    gateway.shutdown()
    with contextlib.suppress(OSError):
        # It ends when nobody is at the other end any more.
        process.stdin.close()
    process.wait(_END_S)
    if not path.exists():
        raise HeadwaterError("Java has written no archive")


def _queries(spark: "SparkSession", folder: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415

    rows = pa.table({"id": list(range(2000)), "name": [f"n{i % 7}" for i in range(2000)]})
    frame = spark.createDataFrame(rows)
    frame.write.parquet(str(folder / "rows"))
    stored = spark.read.schema("id bigint, name string").parquet(str(folder / "rows"))
    stored.createOrReplaceTempView("stored")
    found = spark.sql(
        "select a.name, count(*) n, sum(a.id) s, cast(sum(b.id) as decimal(38, 2)) d,"
        " max(timestamp_millis(a.id)) at from stored a left join stored b on a.id = b.id + 1"
        " where a.id % 3 <> 1 group by a.name having count(*) > 1"
    )
    found.repartition(2).sortWithinPartitions("name").mapInArrow(
        lambda b: b, found.schema
    ).toArrow()
    ranked = "select id, row_number() over (partition by name order by id) r from stored"
    spark.sql(f"select * from ({ranked}) where r < 3 union all select 1, 2").collect()
    spark.sql("select distinct name from stored order by name limit 5").toArrow()
    spark.sql("select id from stored where id not in (select id from stored where id > 5)").count()


if __name__ == "__main__":
    began = time.monotonic()
    try:
        print(f"{make_archive()} ({time.monotonic() - began:.0f} s)")
    except (HeadwaterError, OSError) as error:
        sys.exit(str(error))
