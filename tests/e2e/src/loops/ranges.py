# Reads, writes and zeroes ranges of any length of a file, and compares it with bytes in memory.
# Then threads write parts of the same sectors at the same time.
import ctypes
import errno
import os
import random
import sys
import threading

path, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)
libc = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH, ZERO = 1, 2, 16
file = os.open(path, os.O_RDWR)
size = os.fstat(file).st_size
model = bytearray(size)


def allocate(mode, at, length):
    ends = libc.fallocate(file, mode, ctypes.c_long(at), ctypes.c_long(length))
    return 0 if ends == 0 else ctypes.get_errno()


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"seed {seed}: {what}: {found!r}, not {wanted!r}")


def step():
    at = chance.randrange(size)
    length = min(chance.choice([1, 100, 511, 512, 4096, 5000, 70000, 300000]), size - at)
    if chance.random() < 0.3:
        at -= at % 4096
    kind = chance.randrange(5)
    if kind < 2:
        data = chance.randbytes(length)
        expect("written", os.pwrite(file, data, at), length)
        model[at : at + length] = data
    elif kind == 2:
        if os.pread(file, length, at) != model[at : at + length]:
            sys.exit(f"seed {seed}: {length} bytes at {at} are not what was written")
    else:
        mode = PUNCH | KEEP if kind == 3 else ZERO | KEEP
        expect("zeroed", allocate(mode, at, length), 0)
        model[at : at + length] = bytes(length)


def holes():
    at = 0
    while at < size:
        try:
            data = os.lseek(file, at, os.SEEK_DATA)
        except OSError as e:
            expect("no data", e.errno, errno.ENXIO)
            data = size
        if any(model[at:data]):
            sys.exit(f"seed {seed}: a hole from {at} to {data} has data")
        if data < size:
            at = os.lseek(file, data, os.SEEK_HOLE)
            if at <= data:
                sys.exit(f"seed {seed}: data at {data} ends at {at}")
        else:
            at = size


def stripe(mine, of):
    width = 100
    for round in range(40):
        for at in range(mine * width, 40000, of * width):
            os.pwrite(file, bytes([65 + mine + round % 2 * 32]) * width, at)


for _ in range(400):
    step()
holes()
expect("all of it", os.pread(file, 1 << 20, 0) == bytes(model[: 1 << 20]), True)
expect("at the end", os.pread(file, 100, size), b"")
expect("what is left of a read", len(os.pread(file, 100, size - 7)), 7)
expect("what is left of a write", os.pwrite(file, b"x" * 100, size - 7), 7)
for what, mode in (("reserved", 0), ("collapsed", 8)):
    expect(what, allocate(mode, 0, 4096), errno.EOPNOTSUPP)
try:
    os.pwrite(file, b"x", size)
    sys.exit("a write behind the end is accepted")
except OSError as e:
    expect("a write behind the end", e.errno, errno.ENOSPC)
threads = [threading.Thread(target=stripe, args=(mine, 4)) for mine in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
wanted = b"".join(bytes([65 + stripe % 4 + 32]) * 100 for stripe in range(400))
expect("stripes", os.pread(file, 40000, 0) == wanted, True)
