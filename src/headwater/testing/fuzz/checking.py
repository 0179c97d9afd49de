"""Whether every materialized view of an engine equals its query, `EXCEPT ALL` both ways.

What a view has stored is read without Spark, file by file; its query runs on Spark at the same
epoch, and the queries of all views share one job. A view that has failed must give an error to
whoever reads it, and so must its query.
"""

from collections.abc import Mapping

import pyarrow as pa

from headwater.errors import HeadwaterError
from headwater.model.epoch import Epoch
from headwater.model.types import DataType, Kind
from headwater.runtime.view_keeper import Failure
from headwater.session.result import Result
from headwater.session.synchronous import Headwater
from headwater.sql.algebra import Output
from headwater.testing.oracle import RowsDiffer, assert_same_rows
from headwater.views.fused import collect_all

ROW_ERRORS = ("22", "21")
"""Classes of SQLSTATE that rows can cause; any other error of a view is ours."""


class ViewDiffers(AssertionError):
    """A view is not what its query says."""


def check_views(hw: Headwater, views: Mapping[str, str], epoch: Epoch | None = None) -> None:
    """Compare each view, by name and query, at the last epoch or at another."""
    at = hw.visible if epoch is None else epoch
    failed = failed_views(hw)
    for name in views:
        if name in failed:
            _check_failed(hw, name, views[name])
    well = {name: query for name, query in views.items() if name not in failed}
    wanted = _answers(hw, well, at)
    for name, (types, rows) in wanted.items():
        stored = _stored(hw, name, at)
        if types != [type_ for _, type_ in stored[0]]:
            told = f"stored {[t.postgres for _, t in stored[0]]}, now {[t.postgres for t in types]}"
            raise ViewDiffers(f"the types of {name} have changed: {told}")
        try:
            assert_same_rows(_comparable(stored[1], types), _comparable(rows, types), one_zero=True)
        except RowsDiffer as error:
            raise ViewDiffers(f"view {name} at epoch {at}: {error}\n{views[name]}") from error


def defined_views(hw: Headwater) -> dict[str, str]:
    """The views of an engine with their queries, as their statements were written."""
    found = {}
    for view in hw.engine.catalog.snapshot().materialized_views:
        assert view.detail.query is not None
        found[view.name] = view.detail.query.text.split(" AS ", 1)[1]
    return found


def failed_views(hw: Headwater) -> dict[str, Failure]:
    """The views that cannot be read, and why."""
    snapshot = hw.engine.catalog.snapshot()
    return {
        found.name: failure
        for id_, failure in hw.engine.keeper.failures.items()
        if (found := snapshot.by_id(id_)) is not None
    }


def _check_failed(hw: Headwater, name: str, query: str) -> None:
    failure = failed_views(hw)[name]
    if not failure.sqlstate.startswith(ROW_ERRORS):
        told = f"{failure.sqlstate}: {failure.message}"
        raise ViewDiffers(f"view {name} has failed with {told}\n{query}")
    for text in (f"SELECT * FROM {name}", query):
        try:
            hw.sql(text).arrow()
        except HeadwaterError:
            continue
        raise ViewDiffers(f"view {name} has failed, and this gives rows: {text}")


def _stored(hw: Headwater, name: str, epoch: Epoch) -> tuple[list[tuple[str, DataType]], pa.Table]:
    table = hw.engine.catalog.snapshot().table(name)
    columns = [(column.name, column.type) for column in table.columns]
    rows = hw.stored(name).rows(epoch).select([column for column, _ in columns])
    return columns, rows


def _answers(
    hw: Headwater, views: Mapping[str, str], epoch: Epoch
) -> dict[str, tuple[list[DataType], pa.Table]]:
    """The rows of each query, all in one Spark job where none raises."""
    found = {name: hw.sql(query, epoch=epoch) for name, query in views.items()}
    try:
        tables = _together(hw, found)
    except Exception:
        # One by one, the culprit says what it was.
        tables = {name: _alone(name, result, views[name]) for name, result in found.items()}
    return {
        name: ([column.type for column in result.columns], tables[name])
        for name, result in found.items()
    }


def _alone(name: str, result: Result, query: str) -> pa.Table:
    try:
        return result.arrow()
    except HeadwaterError as error:
        raise ViewDiffers(f"view {name} is well, and its query raises {error}\n{query}") from error


def _together(hw: Headwater, found: Mapping[str, Result]) -> dict[str, pa.Table]:
    queries = []
    names = [f"_hw_fuzz_{number}" for number in range(len(found))]
    try:
        for name, result in zip(names, found.values(), strict=True):
            assert result.frame is not None
            places = [f"c{n}" for n in range(len(result.columns))]
            result.frame.toDF(*places).createOrReplaceTempView(name)
            outputs = [Output(p, c.type) for p, c in zip(places, result.columns, strict=True)]
            queries.append((f"select * from {name}", outputs))
        return dict(zip(found, collect_all(hw.spark(), queries), strict=True))
    finally:
        for name in names:
            hw.spark().catalog.dropTempView(name)


def _comparable(rows: pa.Table, types: list[DataType]) -> pa.Table:
    """Columns by place, and each number under one spelling."""
    columns = []
    for column, type_ in zip(rows.columns, types, strict=True):
        if type_.kind is Kind.NUMERIC:
            texts = [None if v is None else _one_spelling(v) for v in column.to_pylist()]
            columns.append(pa.chunked_array([pa.array(texts, pa.string())]))
        else:
            columns.append(column.cast(type_.arrow))
    return pa.Table.from_arrays(columns, names=[f"c{n}" for n in range(len(columns))])


def _one_spelling(number: str) -> str:
    if "." not in number or "e" in number.lower():
        return number
    short = number.rstrip("0").rstrip(".")
    return "0" if short in ("-0", "") else short
