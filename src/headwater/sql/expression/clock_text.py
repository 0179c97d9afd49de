"""Times of day, which are stored as text `HH:MM:SS[.ffffff]`, as numbers and back."""

DAY = 86_400_000_000
"""Microseconds of a day."""


def time_micros(text: str) -> str:
    """A time of day as microseconds since midnight, in Spark."""
    seconds = f"rpad(replace(substring({text}, 7), '.', ''), 8, '0')"
    return (
        f"(cast(substring({text}, 1, 2) as bigint) * 3600000000L + "
        f"cast(substring({text}, 4, 2) as bigint) * 60000000L + cast({seconds} as bigint))"
    )


def micros_time(micros: str) -> str:
    """Microseconds since midnight as a time of day, in Spark."""

    def two(number: str) -> str:
        return f"lpad(cast({number} as string), 2, '0')"

    fraction = "rtrim('0', lpad(cast(c % 1000000L as string), 6, '0'))"
    body = (
        f"concat({two('c div 3600000000L')}, ':', {two('(c div 60000000L) % 60L')}, ':', "
        f"{two('(c div 1000000L) % 60L')}, if(c % 1000000L = 0L, '', concat('.', {fraction})))"
    )
    return f"get(transform(array({micros}), c -> if(c is null, null, {body})), 0)"
