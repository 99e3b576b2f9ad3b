#!/usr/bin/env python3
"""Prints all that a copy of the tree in a directory has in common with it, a line each."""
import hashlib, os, stat, sys


def holes(path, size):
    """Where the file has data. Small files have no holes worth keeping."""
    found, at, file = [], 0, os.open(path, os.O_RDONLY)
    try:
        while 4096 <= size > at:
            try:
                start = os.lseek(file, at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file, start, os.SEEK_HOLE)
            found.append((start, at))
    finally:
        os.close(file)
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def content(path, info):
    if stat.S_ISLNK(info.st_mode):
        return os.fsencode(os.readlink(path))
    if not stat.S_ISREG(info.st_mode):
        return '-'
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest() + ' ' + holes(path, info.st_size)


def line(path, root, first):
    info = os.lstat(path)
    names = sorted(os.listxattr(path, follow_symlinks=False))
    attributes = [(n, os.getxattr(path, n, follow_symlinks=False)) for n in names]
    name, facts = os.path.relpath(path, root), ()
    if not stat.S_ISDIR(info.st_mode):
        # Names of one file are told by the first of them.
        facts = (info.st_nlink, info.st_size, first.setdefault(info.st_ino, name))
    facts += (oct(info.st_mode), info.st_uid, info.st_gid, info.st_rdev, info.st_mtime_ns)
    print(ascii(name), facts, attributes, content(path, info))


def main(root):
    root, first = os.fsencode(root), {}
    line(root, root, first)
    for directory, directories, files in os.walk(root):
        directories.sort()
        for name in sorted(directories + files):
            line(os.path.join(directory, name), root, first)


main(sys.argv[1])
