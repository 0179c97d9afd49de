"""How a table is read: how many readers, how large their chunks, how patient they are."""

from dataclasses import dataclass, field

from headwater.model.rate_limit import RateLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The limits of one table's backfill. Times are in seconds."""

    parallelism: int = 4
    """Splits that are read at the same time."""
    chunk_rows: int = 1_000_000
    chunk_bytes: int = 128 << 20
    """Both are twice what a split is planned with, so that most are read at once."""
    held_bytes: int = 256 << 20
    """Chunks that wait in memory for the end of their epoch; no more are read above it."""
    remembered_bytes: int = 64 << 20
    """Changes remembered while chunks are under way."""
    divide_after_rows: int = 1_000_000
    """A split of which more rows are read is divided when readers are idle."""
    first_retry_s: float = 0.05
    longest_retry_s: float = 10.0
    probe_after: int = 4096
    """So many transactions unseen by any chunk make a paused table look at one row."""
    keys_at_once: int = 1000
    """Rows that are read by key, per read."""
    limit: RateLimit = field(default_factory=RateLimit)
