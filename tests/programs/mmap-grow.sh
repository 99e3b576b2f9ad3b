#!/usr/bin/env bash
# A file grows, is cut and filled while several mappings of it are read and stored to: what is
# read is what was written, whoever wrote it, in any order.
# needs: python3
set -eu
cd "$1"
cat >t.py <<'END'
import ctypes, hashlib, mmap, os, random

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]

PAGE = 4096
MAX = 1200

def mapping(fd, pages, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=0):
    # Python's own mmap refuses what is beyond the end of the file.
    at = libc.mmap(None, pages * PAGE, prot, flags, fd, offset)
    return memoryview((ctypes.c_ubyte * (pages * PAGE)).from_address(at)).cast('B')

def by_another(change):
    child = os.fork()
    if child == 0:
        change()
        os._exit(0)
    os.waitpid(child, 0)

class File:
    def __init__(self, name):
        self.fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self.maps = [
            mapping(self.fd, MAX),
            mapping(self.fd, MAX, prot=mmap.PROT_READ | mmap.PROT_WRITE),
            mapping(self.fd, 700, offset=300 * PAGE),
        ]

    def size(self):
        return os.fstat(self.fd).st_size

    def append(self, r):
        n = r.randrange(1, 5 * PAGE)
        if self.size() + n < MAX * PAGE:
            os.pwrite(self.fd, r.randbytes(n), self.size())

    def overwrite(self, r):
        os.pwrite(self.fd, r.randbytes(r.randrange(1, 3 * PAGE)), r.randrange(MAX - 3) * PAGE // 2)

    def beyond(self, r):
        at = min(self.size() + r.randrange(9 * PAGE), MAX * PAGE - 100)
        os.pwrite(self.fd, r.randbytes(100), at)

    def cut(self, r):
        os.ftruncate(self.fd, r.randrange(self.size() + 1))

    def longer(self, r):
        os.ftruncate(self.fd, min(self.size() + r.randrange(99 * PAGE), MAX * PAGE))

    def store(self, r):
        if self.size():
            for _ in range(9):
                self.maps[1][r.randrange(self.size())] = r.randrange(256)

    def look(self, r):
        """Some pages, each through one of the mappings."""
        sum = hashlib.md5()
        for _ in range(30):
            m = r.choice(self.maps)
            start = 300 * PAGE if m is self.maps[2] else 0
            there = min(self.size() - start, len(m))
            if there > 0:
                at = r.randrange(there)
                sum.update(m[at:min(at + 3 * PAGE, there)])
        return sum.hexdigest()[:8]

    def all(self):
        n = self.size()
        seen = [bytes(m[:n]) for m in self.maps[:2]]
        assert seen[0] == seen[1] == os.pread(self.fd, n, 0), 'mappings differ'
        return hashlib.md5(seen[0]).hexdigest()[:8]

for seed in range(6):
    r = random.Random(seed)
    f = File('f%d' % seed)
    weights = {f.append: 12, f.overwrite: 3, f.beyond: 2, f.cut: 1, f.longer: 1, f.store: 4}
    for step in range(300):
        change, = r.choices(list(weights), weights.values())
        if r.random() < 0.1:
            state, length = r.getstate(), f.size()
            by_another(lambda: change(r))
            r.setstate(state)
            r.random()
        else:
            change(r)
        print(seed, step, change.__name__, f.size(), f.look(r), flush=True)
    print(seed, f.all())
END
python3 t.py
