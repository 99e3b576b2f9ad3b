"""Values as files of fsspec: holdfast://KEYSPACE/KEY, with the pool as the option `pool`.

    fsspec.open("holdfast://models/large/v1.bin", "rb", pool="/dev/shm/pool")

A key's slashes look like directories, as in an object store; there are none of their own. A key
that is no UTF-8 has its odd bytes as os.fsdecode shows them. Without the option, the environment
variable HOLDFAST_POOL names the pool.

What is written appears as a whole when its file is closed, and all files of a transaction
(`with fs.transaction:`) appear together.
"""

from __future__ import annotations

import datetime
import errno
import io
import os
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction

import holdfast


class _Together(Transaction):
    """Files that were closed in a transaction: one batch."""

    def complete(self, commit: bool = True) -> None:
        files, self.files = list(self.files), type(self.files)()
        self.fs._intrans = False
        self.fs._transaction = None
        if commit:
            with self.fs._pool.batch(durability=self.fs._durability) as batch:
                for file in files:
                    file.check()
                    batch.put(file.keyspace, file.key, file.content)
        self.fs = None


class HoldfastFileSystem(AbstractFileSystem):
    """The keyspaces of a pool as directories."""

    protocol = "holdfast"
    root_marker = ""
    transaction_type = _Together

    def __init__(
        self,
        pool: str | os.PathLike[str] | None = None,
        *,
        create: bool = False,
        snapshot: str | None = None,
        durability: str = "durable",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        pool = pool if pool is not None else os.environ.get("HOLDFAST_POOL")
        if pool is None:
            raise ValueError("which pool? Give the option pool=PATH, or set HOLDFAST_POOL")
        self._durability = durability
        self._pool = holdfast.open(pool, create=create)
        self._source = self._pool if snapshot is None else self._pool.snapshot(snapshot)

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = os.fspath(path)
        path = path.removeprefix("holdfast://").removeprefix("holdfast:")
        return path.strip("/")

    def _split(self, path: str) -> tuple[str, bytes]:
        """The name of the keyspace and the key."""
        name, _, key = self._strip_protocol(path).partition("/")
        return name, os.fsencode(key)

    def _keyspace(self, name: str, *, create: bool = False) -> holdfast.Keyspace:
        try:
            return self._source.keyspace(name, create=create, durability=self._durability)
        except holdfast.Error as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(error.errno, str(error.strerror), name) from error
            raise

    def _to_put(self, path: str) -> tuple[holdfast.Keyspace, bytes]:
        """The keyspace, which is created if need be, and the key."""
        name, key = self._split(path)
        if not key:
            raise IsADirectoryError(errno.EISDIR, "a keyspace is a directory", path)
        return self._keyspace(name, create=True), key

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "there is no such key or keyspace", path)

    @staticmethod
    def _taken(path: str) -> FileExistsError:
        return FileExistsError(errno.EEXIST, "the key has a value", path)

    @staticmethod
    def _file(path: str, size: int) -> dict[str, Any]:
        return {"name": path, "size": size, "type": "file"}

    @staticmethod
    def _directory(path: str) -> dict[str, Any]:
        return {"name": path, "size": 0, "type": "directory"}

    def _below(self, name: str, prefix: bytes) -> list[dict[str, Any]]:
        """What stands directly below a prefix: files and directories, each once."""
        keyspace = self._keyspace(name)
        found, start, end = {}, prefix, _after(prefix)
        while True:
            # From each directory the scan goes on behind it, so the keys in it are not looked at.
            for key, value in keyspace.scan(start, end):
                head, slash, _ = key[len(prefix) :].partition(b"/")
                path = f"{name}/{os.fsdecode(prefix + head)}"
                if slash:
                    found.setdefault(path, self._directory(path))
                    start = prefix + head + b"0"  # the byte after the slash
                    break
                if head:
                    found[path] = self._file(path, len(value))
            else:
                return list(found.values())

    def ls(self, path, detail=True, **_):
        name, key = self._split(path)
        if not name:
            found = [self._directory(each) for each in self._source.keyspaces()]
        else:
            keyspace = self._keyspace(name)
            size = keyspace.size(key) if key else None
            found = self._below(name, key + b"/" if key else b"")
            if size is not None:
                found = [self._file(self._strip_protocol(path), size)]
            elif key and not found:
                raise self._missing(path)
        found.sort(key=lambda each: each["name"])
        return found if detail else [each["name"] for each in found]

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **options):
        name, key = self._split(path)
        if not name or maxdepth is not None or withdirs:
            return super().find(path, maxdepth, withdirs, detail, **options)
        found = {}
        try:
            keyspace = self._keyspace(name)
        except FileNotFoundError:
            return found if detail else []
        size = keyspace.size(key) if key else None
        if size is not None:
            plain = self._strip_protocol(path)
            found[plain] = self._file(plain, size)
        else:
            # One scan, wherever the slashes are.
            for each, value in keyspace.prefix(key + b"/" if key else b""):
                plain = f"{name}/{os.fsdecode(each)}"
                found[plain] = self._file(plain, len(value))
        return found if detail else list(found)

    def info(self, path, **_):
        name, key = self._split(path)
        plain = self._strip_protocol(path)
        if not name:
            return self._directory("")
        keyspace = self._keyspace(name)
        if not key:
            return self._directory(plain)
        size = keyspace.size(key)
        if size is not None:
            time = keyspace.modified_ns(key)
            return self._file(plain, size) | {"mtime": None if time is None else time / 1e9}
        for _ in keyspace.prefix(key + b"/"):
            return self._directory(plain)
        raise self._missing(path)

    def modified(self, path):
        """When the value was put."""
        name, key = self._split(path)
        time = self._keyspace(name).modified_ns(key) if key else None
        if time is None:
            raise self._missing(path)
        return datetime.datetime.fromtimestamp(time / 1e9, datetime.timezone.utc)

    def created(self, path):
        """The same: a put makes a new value."""
        return self.modified(path)

    def cat_file(self, path, start=None, end=None, **_):
        name, key = self._split(path)
        keyspace = self._keyspace(name)
        if not key:
            raise self._missing(path)
        if start is None and end is None:
            value = keyspace.get(key)
            if value is None:
                raise self._missing(path)
            return value
        try:
            with keyspace.open(key) as file:
                size = file.seek(0, io.SEEK_END)
                start, end, _ = slice(start, end).indices(size)
                file.seek(start)
                return file.read(max(end - start, 0))
        except KeyError:
            raise self._missing(path) from None

    def pipe_file(self, path, value, mode="overwrite", **_):
        if self._intrans:
            with self.open(path, "xb" if mode == "create" else "wb") as file:
                file.write(value)
            return
        keyspace, key = self._to_put(path)
        if mode != "create":
            keyspace[key] = value
        elif not keyspace.put_if(key, None, value)[0]:
            raise self._taken(path)

    def touch(self, path, truncate=True, **_):
        keyspace, key = self._to_put(path)
        if truncate:
            keyspace[key] = b""
        else:
            keyspace.put_if(key, None, b"")

    def rm_file(self, path):
        name, key = self._split(path)
        if not key or not self._keyspace(name).erase(key):
            raise self._missing(path)

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        for each in self.expand_path(path, recursive=recursive, maxdepth=maxdepth):
            name, key = self._split(each)
            if key and key in self._keyspace(name):
                self.rm_file(each)

    def cp_file(self, path1, path2, **_):
        if self.isdir(path1):
            return  # there are none of their own
        self.pipe_file(path2, self.cat_file(path1))

    def mv(self, path1, path2, recursive=False, maxdepth=None, **options):
        """A value, or a keyspace that gets a name which is free, moves at once."""
        (name1, key1), (name2, key2) = self._split(path1), self._split(path2)
        if not key1 and not key2 and name1 and name2 and not self.exists(name2):
            self._pool.rename_keyspace(name1, name2)
            return
        value = self._keyspace(name1).get(key1) if key1 and key2 else None
        if value is None or str(path2).endswith("/") or self.isdir(path2):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
        elif (name1, key1) != (name2, key2):
            with self._pool.batch(durability=self._durability) as batch:
                batch.put(self._keyspace(name2, create=True), key2, value)
                batch.erase(self._keyspace(name1), key1)

    def mkdir(self, path, create_parents=True, **_):
        name, _ = self._split(path)
        if name:
            self._keyspace(name, create=True)

    def makedirs(self, path, exist_ok=False):
        self.mkdir(path)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **_):
        name, key = self._split(path)
        if not key:
            raise IsADirectoryError(errno.EISDIR, "a keyspace is a directory", path)
        if mode in ("rb", "r+b"):
            keyspace = self._keyspace(name)
            if key not in keyspace:
                raise self._missing(path)
            if mode == "r+b":
                return _Edited(keyspace, key, keyspace.get(key, b""))
            return keyspace.open(key)
        if mode not in ("wb", "xb", "ab", "w+b"):
            raise io.UnsupportedOperation(f"the mode {mode!r}")
        keyspace = self._keyspace(name, create=True)
        if mode == "xb" and key in keyspace:
            raise self._taken(path)
        if mode == "wb" and autocommit:
            return keyspace.open(key, "wb")
        before = keyspace.get(key, b"") if mode == "ab" else b""
        file = _Edited(keyspace, key, before, new=mode == "xb", autocommit=autocommit)
        file.seek(0, io.SEEK_END)
        return file


class _Edited(io.BytesIO):
    """A value in memory, which is put when the file is closed: all of it, or nothing of it if the
    `with` block is left by an exception."""

    def __init__(
        self,
        keyspace: holdfast.Keyspace,
        key: bytes,
        value: bytes,
        *,
        new: bool = False,
        autocommit: bool = True,
    ) -> None:
        super().__init__(value)
        self.keyspace, self.key, self.content = keyspace, key, b""
        self._new, self._autocommit = new, autocommit

    def check(self) -> None:
        """Refuse a new value where there is one."""
        if self._new and self.key in self.keyspace:
            raise FileExistsError(errno.EEXIST, "the key has a value", os.fsdecode(self.key))

    def commit(self) -> None:
        """Put what was written."""
        if not self._new:
            self.keyspace[self.key] = self.content
        elif not self.keyspace.put_if(self.key, None, self.content)[0]:
            raise FileExistsError(errno.EEXIST, "the key has a value", os.fsdecode(self.key))

    def discard(self) -> None:
        """Forget what was written."""
        super().close()

    def close(self) -> None:
        if self.closed:
            return
        self.content = self.getvalue()
        super().close()
        if self._autocommit:
            self.commit()

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # Nobody closed it, so nobody wanted it.
        self.discard()


def _after(prefix: bytes) -> bytes | None:
    """The first key behind all that begin so; None if there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
