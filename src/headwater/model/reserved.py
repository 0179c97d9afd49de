"""Every name we own in the user's world.

Columns in change chunks and change files use Spark's and Delta's words. `_vnode` and
`_commit_version` also lie in data files, undeclared in the Delta schema, so that other tools do
not see them. Nothing the user names may begin with `RESERVED_PREFIX` or equal one of these.
"""

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
VNODE = "_vnode"
SEQ = "_seq"
"""The order of changes inside a large chunk; two changes of one key need it."""

RESERVED_PREFIX = "_hw_"
HIDDEN_PREFIX = "_hw_own_"
"""Stored columns that are ours, such as a view's hidden key; users may not name one so."""

RESERVED_COLUMNS = frozenset({CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP, VNODE, SEQ})

APP_ID = "headwater"
"""The appId of Delta `txn` actions; their version is the epoch."""


def is_reserved(column: str) -> bool:
    """Whether a user's column may not have this name."""
    return column in RESERVED_COLUMNS or column.startswith(RESERVED_PREFIX)
