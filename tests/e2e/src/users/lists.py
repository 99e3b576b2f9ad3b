"""Access control lists, call by call, in the working directory: what each call says is printed, to
be compared between file systems."""

import errno
import os
import struct
import time

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NO_ID = 0xFFFFFFFF


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


FULL = acl((1, 7, NO_ID), (2, 5, 3001), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID))
LEAST = acl((1, 6, NO_ID), (4, 4, NO_ID), (32, 4, NO_ID))
MASK = acl((1, 6, NO_ID), (4, 4, NO_ID), (16, 6, NO_ID), (32, 4, NO_ID))
TWICE = acl((1, 7, NO_ID), (2, 5, 3001), (2, 4, 3001), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID))
VALUES = {
    "full": FULL,
    "least": LEAST,
    "mask": MASK,
    "twice": TWICE,
    "no entries": acl(),
    "empty": b"",
    "short": b"\2\0",
    "odd": FULL + b"x",
    "version 1": b"\1\0\0\0",
    "version 3": b"\3" + FULL[1:],
    "too big": b"x" * 70000,
    "long": b"\2\0\0\0" + b"x" * 65532,
    "no right": acl((1, 8, NO_ID), (4, 4, NO_ID), (32, 4, NO_ID)),
}


def say(what, call):
    try:
        print(what, call())
    except OSError as e:
        print(what, errno.errorcode[e.errno])


def mode(path):
    return oct(os.lstat(path).st_mode)


def look(path):
    for name in ACCESS, DEFAULT:
        say(f"{path} has", lambda: os.getxattr(path, name, follow_symlinks=False))
    say("names", lambda: sorted(os.listxattr(path, follow_symlinks=False)))
    print(mode(path))


def values():
    for path in "f", "d", "p":
        for name in ACCESS, DEFAULT:
            for value in VALUES:
                for flags in 0, os.XATTR_CREATE, os.XATTR_REPLACE, 3, 4:
                    what = f"{path} {name} {value} {flags}"
                    say(what, lambda: os.setxattr(path, name, VALUES[value], flags))
                look(path)
            for what in "removed", "removed again":
                say(what, lambda: os.removexattr(path, name))
            look(path)


def names():
    for name in ACCESS, DEFAULT, "system.other", "system.":
        for value in FULL, b"xx":
            say(name, lambda: os.setxattr("l", name, value, follow_symlinks=False))
            say(name, lambda: os.setxattr("none", name, value))
        say(name, lambda: os.removexattr("l", name, follow_symlinks=False))
        say(name, lambda: os.getxattr("f", name))
    look("l")


def new_objects():
    for value in FULL, LEAST, MASK:
        os.setxattr("d", DEFAULT, value)
        file = os.open("d", os.O_TMPFILE | os.O_RDWR, 0o666)
        say("without a name", lambda: os.getxattr(file, ACCESS))
        print(oct(os.fstat(file).st_mode))
        os.close(file)
        for bits in 0o777, 0o600, 0o2755, 0o070, 0:
            path = f"d/{len(value)}-{bits:o}"
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, bits))
            look(path)
            os.mkdir(path + "d", bits)
            look(path + "d")
        os.mkfifo(f"d/{len(value)}-p")
        look(f"d/{len(value)}-p")
        os.symlink("x", f"d/{len(value)}-l")
        look(f"d/{len(value)}-l")


def changes():
    os.mkdir("q")
    for group, bits in (-1, 0o2700), (os.getgid() + 1, 0o2770), (-1, 0o2777):
        say("chown", lambda: os.chown("q", -1, group))
        os.chmod("q", bits)
        for value in FULL, LEAST, MASK:
            os.setxattr("q", ACCESS, value)
            look("q")
            os.chmod("q", 0o2650)
            look("q")
        os.chmod("q", bits)
        os.removexattr("q", ACCESS)
        look("q")
    # Times are as coarse as a tick of the kernel may be.
    time.sleep(0.02)
    before = os.stat("f").st_ctime_ns
    os.removexattr("f", ACCESS)
    print("later:", os.stat("f").st_ctime_ns > before)
    os.setxattr("f", ACCESS, FULL)
    os.rename("f", "g")
    os.link("g", "h")
    look("h")


os.umask(0o027)
open("f", "w").close()
os.mkdir("d")
os.symlink("f", "l")
if os.getuid() != 3001:
    # Who is served makes no pipes in a pool: a file in the place of each.
    os.mkfifo = lambda path: os.close(os.open(path, os.O_CREAT, 0o666))
os.mkfifo("p")
values()
names()
new_objects()
changes()
