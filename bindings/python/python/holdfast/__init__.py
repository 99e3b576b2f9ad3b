"""Holdfast: keys and values, batches and snapshots at the speed of memory.

    import holdfast

    with holdfast.open("/dev/shm/pool", create=True) as pool:
        users = pool.keyspace("users", create=True)
        users[b"ada"] = b"1815"
        with pool.batch() as batch:
            batch.put(users, b"alan", b"1912")
            batch.erase(users, b"ada")

Keys and values are bytes, or anything like bytes. Pools, keyspaces, batches and scans may be used
from any thread. An error of the pool is a holdfast.Error, which is an OSError with an errno; its
`fix` says what helps, or is None.
"""

from __future__ import annotations

import datetime
import io
import os
import sysconfig
from collections.abc import Iterator, MutableMapping
from collections.abc import ItemsView as _ItemsView
from collections.abc import ValuesView as _ValuesView
from typing import TYPE_CHECKING, NamedTuple, Self

from . import _native
from ._native import At, Error, Scan, __version__

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "At",
    "Batch",
    "Error",
    "Keyspace",
    "Pool",
    "Quota",
    "Scan",
    "Snapshot",
    "View",
    "__version__",
    "open",
]


def _find_program() -> None:
    """The wheel puts the program beside Python's; HOLDFAST and PATH are tried after that."""
    path = os.path.join(sysconfig.get_path("scripts"), "holdfast")
    if os.access(path, os.X_OK):
        _native.set_program(path)


_find_program()


def open(path: str | os.PathLike[str], *, create: bool = False) -> Pool:
    """Open the pool at a path; with `create`, create it if it does not exist.

    The environment variable HOLDFAST_SLOW has it as if it lay on slower memory (docs/slow.md).
    """
    return Pool(path, create)


class Snapshot(NamedTuple):
    """A snapshot's name and the time at which it was taken, in nanoseconds since 1970."""

    name: str
    time_ns: int

    @property
    def time(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.time_ns / 1e9, datetime.timezone.utc)


class Quota(NamedTuple):
    """What may be taken, and what is taken; a limit that is None is none."""

    kind: str
    """"user", "directory" or "keyspace"."""
    name: str
    """The number of the user, the path of the directory from the root of the pool, or the name of
    the keyspace."""
    bytes: int | None
    files: int | None
    bytes_taken: int
    files_taken: int
    complete: bool
    """All that is below the directory counts; if not, setting the quota again completes it."""


class _Reading:
    """What a pool and a view have in common."""

    def keyspace(
        self, name: str, *, create: bool = False, durability: str = "durable"
    ) -> Keyspace:
        """A keyspace by its name; with `create`, create it if it does not exist.

        `durability` is that of its changes unless they say otherwise: "durable" (when the call
        returns), "ordered" (later, none before an earlier one) or "volatile" (later).
        """
        return Keyspace(self, name, create, durability)

    def __getitem__(self, name: str) -> Keyspace:
        try:
            return self.keyspace(name)
        except Error as error:
            if error.errno == 2:
                raise KeyError(name) from error
            raise

    def __contains__(self, name: str) -> bool:
        return name in self.keyspaces()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keyspaces())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pool(_Reading, _native.Pool):
    """A pool. Closing it also closes everything that was opened through it."""

    def batch(self, *, durability: str = "durable") -> Batch:
        """Changes that all happen or none does; a context manager commits them at its end."""
        return Batch(self, durability)

    def read(self) -> View:
        """The pool as it is now, for consistent reads. Close it soon."""
        return View(self)

    def __delitem__(self, name: str) -> None:
        """Drop a keyspace and all its keys."""
        try:
            self.drop_keyspace(name)
        except Error as error:
            if error.errno == 2:
                raise KeyError(name) from error
            raise

    def snapshot(self, name: str) -> View:
        """The pool as it was when the snapshot was taken."""
        return View(self, name)

    def snapshots(self) -> list[Snapshot]:
        """All snapshots, oldest first."""
        return [Snapshot(*each) for each in self.snapshot_times()]

    def quotas(self) -> list[Quota]:
        """All quotas, for the pool's owner and root; `set_quota` and `remove_quota` change them."""
        return [Quota(*each) for each in self.quota_rows()]


class View(_Reading, _native.View):
    """A pool as of one moment; it can be read and never changes."""


class Batch(_native.Batch):
    """Changes to keyspaces of one pool, which all happen or none does."""

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


class _Items(_ItemsView[bytes, bytes]):
    _mapping: Keyspace

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping.scan()

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping.scan(reverse=True)


class _Values(_ValuesView[bytes]):
    _mapping: Keyspace

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.scan())

    def __reversed__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.scan(reverse=True))


class Keyspace(_native.Keyspace, MutableMapping[bytes, bytes]):  # type: ignore[misc]
    """Keys and values as a mapping that is ordered by its keys.

    Iterating shows the keyspace as it was when that began. `len` looks at every key.
    """

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan())

    def __reversed__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan(reverse=True))

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return next(self.scan(), None) is not None

    def __repr__(self) -> str:
        return f"<holdfast.Keyspace {self.name!r}>"

    def items(self) -> _Items:
        return _Items(self)

    def values(self) -> _Values:
        return _Values(self)

    def popitem(self) -> tuple[bytes, bytes]:
        """Remove and return the first pair."""
        for key, value in self.scan():
            del self[key]
            return key, value
        raise KeyError("the keyspace is empty")

    def clear(self) -> None:
        self.erase_range()

    def get_into(self, key: Buffer, buffer: Buffer) -> int | None:
        """Copy as much of a value as fits into a buffer; return its full length, or None."""
        value = self.get(key)
        if value is None:
            return None
        room = memoryview(buffer).cast("B")
        fits = min(len(value), len(room))
        room[:fits] = memoryview(value)[:fits]
        return len(value)

    def view(self, key: Buffer) -> memoryview:
        """A value as a read-only memoryview, in which a later put does not show.

        In a keyspace of a view or a snapshot, a large value is not copied: the memory of the pool
        itself is seen. A view of the present that is held for long while very much is changed is
        given up, and its memory used again; `.obj.intact` of the memoryview says whether all that
        was read up to then was the value. A snapshot is never given up. Otherwise, the value is
        copied once, when this is called.
        """
        lent = self.lend(key)
        return memoryview(self[key] if lent is None else lent)

    def open(
        self,
        key: Buffer,
        mode: str = "rb",
        *,
        durability: str | None = None,
        expires: float | datetime.timedelta | datetime.datetime | At | None = None,
    ) -> io.BufferedReader | _ValueWriter:
        """A value as a file: "rb" reads it, "wb" replaces it when the file is closed.

        The new value appears as a whole at `close`, or not at all if the `with` block is left by an
        exception. With `expires`, as for `put`, its key expires; then it is held in memory until the
        file is closed, and has at most 64 MiB.
        """
        if mode in ("rb", "r"):
            reader = self.reader(key)
            if reader is None:
                raise KeyError(bytes(key))
            return io.BufferedReader(_ValueReader(reader), 1 << 16)
        if mode in ("wb", "w"):
            return _ValueWriter(self.writer(key, durability, expires=expires))
        raise ValueError(f"the mode is 'rb' or 'wb', not {mode!r}")


class _ValueReader(io.RawIOBase):
    def __init__(self, reader: _native.Reader) -> None:
        self._reader = reader
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {
            io.SEEK_SET: lambda: 0,
            io.SEEK_CUR: lambda: self._at,
            io.SEEK_END: self._reader.size,
        }[whence]()
        if base + offset < 0:
            raise ValueError("a position before the start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        part = self._reader.read_at(self._at, len(buffer))
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


class _ValueWriter(io.RawIOBase):
    def __init__(self, writer: _native.Writer) -> None:
        self._writer = writer
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, part: Buffer) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        written = self._writer.write(memoryview(part).cast("B"))
        self._at += written
        return written

    def discard(self) -> None:
        """Discard what was written."""
        if not self.closed:
            self._writer.abort()
            super().close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # Nobody closed it, so nobody wanted it.
        self.discard()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._writer.finish()
