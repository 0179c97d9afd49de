"""The data sources `headwater-postgres` and `headwater-mysql`: what Spark calls.

    on the driver    options, schema, splits; the log of a stream
    in the tasks     the rows of their splits, over connections of their own

Neither workspace nor engine is needed. The password travels to the tasks inside the reader, which
connects there; it is in no plan, no error and no repr.

Why filters are not taken from Spark (`pushFilters`): Spark 4.3 keeps what it planned for the first
query over a DataFrame, filters included, and uses it for the next query over the same DataFrame,
which then lacks rows. Spark filters by itself what a task has read. Columns are chosen by the
option `columns` or by a schema of the user's own.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headwater.errors import ConfigError, SchemaError
from headwater.model.schema import Column
from headwater.spark_source.columns import require_columns, spark_schema
from headwater.spark_source.external.changes import ChangesReader
from headwater.spark_source.external.options import ReadOptions, divided
from headwater.spark_source.external.rows import RowsReader
from headwater.spark_source.external.upstream import CHANGE_COLUMNS, Upstream


class _ExternalSource(DataSource):
    """Tables of one kind of database, as rows or as a stream of changes."""

    FORMAT: ClassVar[str]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark's own copy of the options is left empty: it would show in a repr.
        super().__init__({})
        self._upstream, self._options = self._parse(dict(options))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.table})"

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return cls.FORMAT

    @staticmethod
    def _parse(options: Mapping[str, str]) -> tuple[Upstream, ReadOptions]:
        raise NotImplementedError

    def schema(self) -> StructType:
        """The table's columns, and those of changes where a stream is asked for."""
        return spark_schema(self._columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read the rows."""
        self._options.require_batch(self._upstream.given)
        require_columns(schema, self._columns(schema.names), self._options.table)
        return RowsReader(self._upstream, self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read the changes."""
        return ChangesReader(self._upstream, self._options, schema)

    def _columns(self, only: Sequence[str] | None = None) -> list[Column]:
        names = self._options.columns if only is None else only
        table = self._upstream.open_table(self._options.table, names)
        columns = [each.column for each in table.schema.columns]
        if names is not None:
            known = {column.name: column for column in columns}
            columns = [known[name] for name in names]
        if self._options.since is None:
            return columns
        ours = {column.name for column in CHANGE_COLUMNS}
        for column in columns:
            if column.name.lower() in ours:
                raise SchemaError(
                    f'column "{column.name}" of {table.name} has a name that changes need',
                    hint="Choose the columns with the option columns, without this one.",
                )
        return [*columns, *CHANGE_COLUMNS]


class PostgresSource(_ExternalSource):
    """Tables of PostgreSQL."""

    FORMAT = "headwater-postgres"

    @staticmethod
    def _parse(options: Mapping[str, str]) -> tuple[Upstream, ReadOptions]:
        try:
            from headwater.spark_source.external import postgres  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise _driver_missing("postgres", error) from None
        own, of_database = divided(PostgresSource.FORMAT, options, postgres.OPTIONS)
        return postgres.PostgresUpstream.parse(of_database), ReadOptions.parse(own)


class MySqlSource(_ExternalSource):
    """Tables of MySQL and MariaDB."""

    FORMAT = "headwater-mysql"

    @staticmethod
    def _parse(options: Mapping[str, str]) -> tuple[Upstream, ReadOptions]:
        try:
            from headwater.spark_source.external import mysql  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise _driver_missing("mysql", error) from None
        own, of_database = divided(MySqlSource.FORMAT, options, mysql.OPTIONS)
        upstream: Any = mysql.MySqlUpstream.parse(of_database)
        return upstream, ReadOptions.parse(own)


def _driver_missing(extra: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"a module is missing: {error.name}", hint=f"pip install 'headwater[{extra}]'"
    )
