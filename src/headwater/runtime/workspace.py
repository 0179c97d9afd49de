"""A workspace: the folder that holds, or points to, everything of one engine.

headwater.toml   settings, if there are any
ledger.db        the ledger and the catalog, unless ledger_url says otherwise
tables/          the tables, unless storage_url says otherwise
cache/           what can be thrown away
"""

import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headwater.config import Settings
from headwater.errors import ConfigError, StorageUnavailable
from headwater.runtime.spark import is_local
from headwater.state.row_cache import RowCache
from headwater.state.storage import Storage, open_storage


@dataclass(frozen=True, slots=True)
class Workspace:
    """One engine's folder and settings."""

    path: Path
    settings: Settings

    @classmethod
    def open(cls, path: Path | str, overrides: Mapping[str, Any] | None = None) -> Self:
        """Make the folder if need be and read its settings."""
        folder = Path(path).expanduser().resolve()
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{folder} is not a folder", hint="Give the path of a folder as the workspace."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageUnavailable(
                f"the workspace {folder} cannot be made: {error.strerror}",
                hint="Give the path of a folder that this user may write to.",
            ) from error
        return cls(folder, Settings.load(folder, overrides))

    @property
    def ledger_url(self) -> str:
        """Where the ledger is."""
        return self.settings.ledger_url or f"sqlite:///{self.path / 'ledger.db'}"

    @property
    def scratch(self) -> Path:
        """Where results and loads wait that are too large for memory; emptied at every start."""
        return self.path / "scratch"

    def storage(self) -> Storage:
        """Where the tables are."""
        url = self.settings.storage_url or str(self.path / "tables")
        return open_storage(url, fsync=self.settings.storage_fsync)

    def cache(self) -> RowCache:
        """The lookup cache of this machine."""
        if self.settings.cache_dir:
            folder = Path(self.settings.cache_dir)
        elif is_local(self.settings.spark_master):
            folder = self.path / "cache"
        else:
            # The workspace is a folder of the driver's machine; executors are elsewhere.
            token = zlib.crc32(str(self.path).encode())
            folder = Path(tempfile.gettempdir()) / f"headwater-cache-{token:08x}"
        return RowCache(folder, self.settings.cache_bytes)
