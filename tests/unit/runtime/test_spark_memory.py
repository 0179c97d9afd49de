"""What Spark's settings have to do with the memory of its process."""

from headwater.config import Settings
from headwater.runtime.spark import _SPEED

MEGABYTE = 1 << 20


def bytes_of(text: str) -> int:
    units = {"k": 1 << 10, "m": MEGABYTE, "g": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def test_a_page_is_no_object_of_its_own_regions():
    """G1 gives an object of half a region whole ones: pages would take twice their size."""
    region = max(MEGABYTE, bytes_of(Settings().spark_driver_memory) // 2048)
    header = 16
    assert bytes_of(_SPEED["spark.buffer.pageSize"]) + header < region // 2
