"""Values as files of fsspec: holdfast://KEYSPACE/KEY, with the pool as the option `pool`.

    fsspec.open("holdfast://models/large/v1.bin", "rb", pool="/dev/shm/pool")

A key's slashes look like directories, as in an object store; there are none of their own. A key
that is no UTF-8 has its odd bytes as os.fsdecode shows them. Without the option, the environment
variable HOLDFAST_POOL names the pool.
"""

from __future__ import annotations

import io
import os

from fsspec.spec import AbstractFileSystem

import holdfast

_ENOENT = 2


class HoldfastFileSystem(AbstractFileSystem):
    """The keyspaces of a pool as directories."""

    protocol = "holdfast"
    root_marker = ""

    def __init__(self, pool=None, *, create=False, snapshot=None, durability="durable", **options):
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

    def _split(self, path):
        """The name of the keyspace and the key."""
        name, _, key = self._strip_protocol(path).partition("/")
        return name, os.fsencode(key)

    def _keyspace(self, name, *, create=False):
        try:
            return self._source.keyspace(name, create=create, durability=self._durability)
        except holdfast.Error as error:
            if error.errno == _ENOENT:
                raise FileNotFoundError(error.errno, str(error.strerror), name) from error
            raise

    def _missing(self, path):
        return FileNotFoundError(_ENOENT, "there is no such key or keyspace", path)

    @staticmethod
    def _file(path, size):
        return {"name": path, "size": size, "type": "file"}

    @staticmethod
    def _directory(path):
        return {"name": path, "size": 0, "type": "directory"}

    def _below(self, name, prefix):
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
            return self._file(plain, size)
        for _ in keyspace.prefix(key + b"/"):
            return self._directory(plain)
        raise self._missing(path)

    def cat_file(self, path, start=None, end=None, **_):
        name, key = self._split(path)
        value = self._keyspace(name).get(key) if key else None
        if value is None:
            raise self._missing(path)
        return value[start:end]

    def pipe_file(self, path, value, mode="overwrite", **_):
        name, key = self._split(path)
        keyspace = self._keyspace(name, create=True)
        if mode == "create" and key in keyspace:
            raise FileExistsError(path)
        keyspace[key] = value

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
        self.pipe_file(path2, self.cat_file(path1))

    def mkdir(self, path, create_parents=True, **_):
        name, _ = self._split(path)
        if name:
            self._keyspace(name, create=True)

    def makedirs(self, path, exist_ok=False):
        self.mkdir(path)

    def _open(self, path, mode="rb", **_):
        name, key = self._split(path)
        if not key:
            raise IsADirectoryError(path)
        if mode == "rb":
            keyspace = self._keyspace(name)
            if key not in keyspace:
                raise self._missing(path)
            return keyspace.open(key)
        keyspace = self._keyspace(name, create=True)
        if mode == "xb" and key in keyspace:
            raise FileExistsError(path)
        if mode == "ab":
            before = keyspace.get(key, b"")
            file = keyspace.open(key, "wb")
            file.write(before)
            return file
        if mode in ("wb", "xb"):
            return keyspace.open(key, "wb")
        raise io.UnsupportedOperation(f"the mode {mode!r}")


def _after(prefix):
    """The first key behind all that begin so; None if there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
