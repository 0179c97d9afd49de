"""What processes that run Spark tasks one after the other do once.

PySpark collects garbage after every task of a process that it uses again. The collector then goes
through everything that was ever imported, which is most of what there is, never garbage, and takes
about 0.1 s: more than a small task.
"""

import functools
import gc


@functools.cache
def settle_in() -> None:
    """Let the collector pass over what the process has by now; call it when imports are done."""
    gc.freeze()
