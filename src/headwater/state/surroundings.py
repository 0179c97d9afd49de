"""What all tables of an engine share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.config import Settings
from headwater.model.ids import Term
from headwater.state.fetched_files import FetchedFiles
from headwater.state.row_cache import RowCache
from headwater.state.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all tables of an engine share."""

    storage: Storage
    cache: RowCache
    settings: Settings
    term: Term
    spark: "Callable[[], SparkSession] | None" = None
    """Gives the session, which starts when it is first needed; None: small work only."""
    parallelism: int = 1

    @property
    def fetched(self) -> FetchedFiles:
        """What tasks of a machine have fetched from an object store."""
        return FetchedFiles(self.cache.folder / "fetched", self.settings.fetched_bytes)
