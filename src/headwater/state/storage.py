"""Where files live: a local folder, or an object store that speaks S3.

The rest of the state room knows only `Storage`: whole immutable files by relative path.
Two promises matter to the protocol.

    Durable    When `put` or `put_file` returns, the file survives a crash of the machine.
    Once       `put_if_absent` writes a name that nobody has written, or says that it is taken;
               two callers can never both succeed. Delta commits rest on it.

Object stores are reached through obstore, which has the conditional put; local files through
the operating system, because obstore does not force them to disk. Errors of either kind become
`StorageUnavailable` with the reason, except a missing file, which is `FileNotFoundError`.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

from headwater.errors import ConfigError, StorageUnavailable


class Storage(Protocol):
    """Files by path relative to one root. Instances travel to Spark tasks."""

    @property
    def url(self) -> str:
        """The root as other tools are told it."""
        ...

    @property
    def local_root(self) -> Path | None:
        """The folder itself when files can be opened in place, else None."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file. Replay: the same bytes under the same name again change nothing."""
        ...

    def put_file(self, path: str, source: Path) -> None:
        """Move a finished local file in. Replay: as `put`."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the file unless the name is taken; False says that it is taken."""
        ...

    def get(self, path: str) -> bytes:
        """Read a whole file."""
        ...

    def get_file(self, path: str, target: Path) -> None:
        """Copy a file to a local path."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """The paths of all files below a folder, in no particular order."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is fine. Replay: nothing left to do."""
        ...

    def move(self, path: str, target: str) -> None:
        """Give a file another name, under which it is seen whole or not at all.

        Replay: it is under the new name, and `FileNotFoundError` says that the old one is gone.
        """
        ...

    def below(self, folder: str) -> "Storage":
        """The same storage with a folder as its root."""
        ...


def open_storage(
    url: str, *, fsync: bool = True, credentials: Mapping[str, str] | None = None
) -> Storage:
    """Open a folder (a path or file:// address) or s3://bucket/prefix.

    Credentials are named as obstore names them; what is left out comes from AWS_* variables.
    """
    parts = urlparse(url)
    match parts.scheme:
        case "" | "file":
            # A plain path is no address: # and ? and % are letters of it.
            root = Path(unquote(parts.path) if parts.scheme else url).resolve()
            with _local_errors(str(root)):
                root.mkdir(parents=True, exist_ok=True)
            return LocalStorage(root, fsync=fsync)
        case "s3":
            return ObjectStorage(url, credentials)
        case scheme:
            raise ConfigError(
                f'storage of kind "{scheme}" is not supported',
                detail=f"storage_url begins with {scheme}://.",
                hint="Use a folder, or s3://bucket/prefix.",
            )


class LocalStorage:
    """Files of a folder, forced to disk."""

    def __init__(self, root: Path, *, fsync: bool = True) -> None:
        self._root = root
        self._fsync = fsync

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self._root)

    @property
    def local_root(self) -> Path | None:
        """The folder."""
        return self._root

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        target = self._root / path
        with _local_errors(path, writes=True):
            temporary = self._write_temporary(target, data)
            temporary.replace(target)
            self._sync_folder(target.parent)

    def put_file(self, path: str, source: Path) -> None:
        """Move a finished local file in."""
        target = self._root / path
        with _local_errors(path, writes=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            if self._fsync:
                with source.open("rb") as file:
                    os.fsync(file.fileno())
            source.replace(target)
            self._sync_folder(target.parent)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the file unless the name is taken."""
        target = self._root / path
        with _local_errors(path, writes=True):
            temporary = self._write_temporary(target, data)
            try:
                # A hard link fails when the name exists, and shows the whole file or nothing.
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            self._sync_folder(target.parent)
        return True

    def get(self, path: str) -> bytes:
        """Read a whole file."""
        with _local_errors(path):
            return (self._root / path).read_bytes()

    def get_file(self, path: str, target: Path) -> None:
        """Copy a file to a local path."""
        target.write_bytes(self.get(path))

    def list(self, prefix: str = "") -> Iterator[str]:
        """The paths of all files below a folder."""
        start = self._root / prefix
        with _local_errors(prefix):
            for folder, _, names in os.walk(start):
                for name in names:
                    yield str((Path(folder) / name).relative_to(self._root))

    def delete(self, path: str) -> None:
        """Remove a file."""
        with _local_errors(path):
            (self._root / path).unlink(missing_ok=True)

    def move(self, path: str, target: str) -> None:
        """Give a file another name."""
        with _local_errors(path):
            (self._root / target).parent.mkdir(parents=True, exist_ok=True)
            (self._root / path).replace(self._root / target)
            self._sync_folder((self._root / target).parent)

    def below(self, folder: str) -> "LocalStorage":
        """The same storage with a folder as its root."""
        return LocalStorage(self._root / folder, fsync=self._fsync)

    def _write_temporary(self, target: Path, data: bytes) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if self._fsync:
                    os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _sync_folder(self, folder: Path) -> None:
        if not self._fsync:
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class ObjectStorage:
    """Files of a bucket. Credentials that are not given come from the usual AWS_* variables."""

    def __init__(self, url: str, credentials: Mapping[str, str] | None = None) -> None:
        self._url = url.rstrip("/")
        self._credentials = dict(credentials or {})
        self._store: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_url": self._url, "_credentials": self._credentials, "_store": None}

    def _open(self) -> Any:
        if self._store is None:
            from obstore.store import S3Store  # noqa: PLC0415  only object stores need it

            endpoint = self._credentials.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
            insecure = endpoint.startswith("http://")
            with _object_errors(self._url):
                given: Any = self._credentials or None
                self._store = S3Store.from_url(
                    self._url,
                    config=given,
                    client_options={
                        "timeout": timedelta(seconds=60),
                        "connect_timeout": timedelta(seconds=5),
                        "allow_http": insecure,
                    },
                    retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=60)},
                )
        return self._store

    @property
    def url(self) -> str:
        """The bucket and prefix."""
        return self._url

    @property
    def local_root(self) -> Path | None:
        """None: files must be fetched."""
        return None

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        with _object_errors(path):
            self._open().put(path, data)

    def put_file(self, path: str, source: Path) -> None:
        """Move a finished local file in, in parts when it is large."""
        with _object_errors(path), source.open("rb") as file:
            self._open().put(path, file)
        source.unlink()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the file unless the name is taken."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        with _object_errors(path):
            try:
                self._open().put(path, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def get(self, path: str) -> bytes:
        """Read a whole file."""
        with _object_errors(path):
            return bytes(self._open().get(path).bytes())

    def get_file(self, path: str, target: Path) -> None:
        """Copy a file to a local path, in pieces."""
        with _object_errors(path), target.open("wb") as file:
            for piece in self._open().get(path).stream(min_chunk_size=8 << 20):
                file.write(piece)

    def list(self, prefix: str = "") -> Iterator[str]:
        """The paths of all files below a folder."""
        with _object_errors(prefix):
            for page in self._open().list(prefix or None):
                for entry in page:
                    yield entry["path"]

    def delete(self, path: str) -> None:
        """Remove a file."""
        with _object_errors(path), contextlib.suppress(FileNotFoundError):
            self._open().delete(path)

    def move(self, path: str, target: str) -> None:
        """Give a file another name: a copy inside the store, then the removal of the old one."""
        with _object_errors(path):
            self._open().copy(path, target)
        self.delete(path)

    def below(self, folder: str) -> "ObjectStorage":
        """The same storage with a folder as its root."""
        return ObjectStorage(f"{self._url}/{folder}", self._credentials)


_HINTS = {
    errno.ENOSPC: "Free some space; the work goes on by itself.",
    errno.EDQUOT: "Raise the quota; the work goes on by itself.",
    errno.EROFS: "Make the file system writable; the work goes on by itself.",
    errno.EACCES: "Give this user the right to write there; the work goes on by itself.",
    errno.EPERM: "Give this user the right to write there; the work goes on by itself.",
}


@contextlib.contextmanager
def _local_errors(path: str, *, writes: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # To a reader a missing file says something. To a writer it says that its temporary
        # file was collected, as happens to an engine that slept while another took over.
        if isinstance(error, FileNotFoundError) and not writes:
            raise
        raise StorageUnavailable(
            f"storage cannot be used: {os.strerror(error.errno or 0)}",
            detail=f"File {path}.",
            hint=_HINTS.get(error.errno or 0, "The work goes on by itself when it can be reached."),
        ) from error


@contextlib.contextmanager
def _object_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, StorageUnavailable):
        raise
    except Exception as error:  # obstore's errors have no common base but Exception
        raise StorageUnavailable(
            "storage cannot be used",
            detail=f"{path}: {type(error).__name__}: {str(error)[:300]}",
            hint="Check that the store is reachable and that AWS_* names the right credentials.",
        ) from error
