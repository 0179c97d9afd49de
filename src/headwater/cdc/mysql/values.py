"""What every value has to pass, from the snapshot and from the log alike."""

import pyarrow as pa

from headwater.cdc.mysql.options import TimeMode, ZeroDates
from headwater.cdc.mysql.times import Moments
from headwater.cdc.mysql.types import Family, MySqlColumn
from headwater.errors import SchemaError
from headwater.model.types import Kind


def checked_moments(
    moments: Moments, column: MySqlColumn, table: str, zero_dates: ZeroDates
) -> pa.Array:
    """Dates and times as Arrow, after those that have no place there were refused."""
    if column.family is Family.TIME:
        if column.type.kind is Kind.TIME and moments.beyond_the_day().any():
            raise SchemaError(
                f'column "{column.name}" of table "{table}" holds a TIME that is no time of day',
                detail="MySQL's TIME goes from -838:59:59 to 838:59:59.",
                hint=f"Set time.mode = '{TimeMode.INTERVAL}' on the source.",
            )
        return moments.texts(column.type.arrow)
    if moments.zero_dates().any() and zero_dates is ZeroDates.ERROR:
        raise SchemaError(
            f'column "{column.name}" of table "{table}" holds a zero date such as 0000-00-00',
            hint=f"Set zero.dates = '{ZeroDates.NULL}' on the source, or mend the rows upstream.",
        )
    return moments.column(column.type.arrow)
