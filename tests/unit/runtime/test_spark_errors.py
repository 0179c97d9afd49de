"""What went wrong in Spark, as one of our errors: what may pass is tried again."""

import pytest
from pyspark.errors import PythonException

from headwater.errors import RetryableError, StorageUnavailable, UserError
from headwater.runtime.spark_errors import SparkGone, TaskLost, explained

TRACEBACK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "read.py", line 100, in fetch
    raise StorageUnavailable(
{line}
"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("headwater.errors.StorageUnavailable: storage cannot be used", StorageUnavailable),
        ("OSError: [Errno 28] No space left on device", StorageUnavailable),
        ("java.io.IOException: No space left on device", StorageUnavailable),
        ("ExecutorLostFailure (executor 1 exited)", TaskLost),
        ("SparkContext was shut down", SparkGone),
    ],
)
def test_what_a_task_has_met_on_its_way_is_tried_again(line, kind):
    found = explained(PythonException(TRACEBACK.format(line=line)))
    assert isinstance(found, kind)
    assert isinstance(found, RetryableError)
    assert found.hint


def test_what_storage_said_is_told():
    line = "headwater.errors.StorageUnavailable: storage cannot be used: timed out"
    assert explained(PythonException(TRACEBACK.format(line=line))).detail.endswith("timed out")


def test_what_is_wrong_with_the_rows_is_not_tried_again():
    found = explained(PythonException(TRACEBACK.format(line="ValueError: no such thing")))
    assert isinstance(found, UserError)
    assert not isinstance(found, RetryableError)
