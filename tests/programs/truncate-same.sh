#!/usr/bin/env bash
# A file is cut to the size that it has: its times change, and blocks beyond its end go.
# needs: python3
set -eu
cd "$1"
python3 - <<'END'
import ctypes, os, time

libc = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE = 1

def state(fd):
    st = os.fstat(fd)
    return st.st_size, st.st_blocks

def changed(fd, call):
    before = os.fstat(fd)
    time.sleep(0.02)
    call()
    after = os.fstat(fd)
    return after.st_mtime_ns > before.st_mtime_ns, after.st_ctime_ns > before.st_ctime_ns

for size in (0, 1, 100, 4096, 10_000, 300_000, 9_000_000):
    path = f"f{size}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"x" * size)
    print(size, state(fd), changed(fd, lambda: os.ftruncate(fd, size)), state(fd))
    # Room beyond the end, near it and far away.
    for at, length in ((size, 65536), (1 << 32, 4096)):
        os.ftruncate(fd, size)
        assert libc.fallocate(fd, KEEP_SIZE, ctypes.c_long(at), ctypes.c_long(length)) == 0
        held = state(fd)[1]
        os.ftruncate(fd, size)
        print(held > state(fd)[1], os.pread(fd, 10, max(size - 5, 0)))
    # By its name the time of the content stays where the size does.
    print(changed(fd, lambda: os.truncate(path, size))[1], state(fd))
    # What grows later reads as zeroes.
    os.ftruncate(fd, size + 5000)
    print(set(os.pread(fd, 5000, size)))
    os.close(fd)
    os.truncate(path, size + 5000)
    print(os.stat(path).st_size)
END
