#!/usr/bin/env bash
# mlockall locks what is the program's, and not the pool; core dumps leave the pool out, too.
# needs: python3
set -eu
cd "$1"
cat >t.py <<'EOF'
import ctypes, fcntl, mmap, os, resource

libc = ctypes.CDLL(None, use_errno=True)
CURRENT, FUTURE, ONFAULT = 1, 2, 4

def status(word):
    for line in open('/proc/self/status'):
        if line.startswith(word):
            return int(line.split()[1])

def lock(what, flags):
    ctypes.set_errno(0)
    got = libc.mlockall(flags)
    locked = status('VmLck')
    print(what, got, ctypes.get_errno(), 'locked' if locked > 0 else 'not', locked < 1 << 20,
          flush=True)

fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 1 << 20)
m = mmap.mmap(fd, 1 << 20)
m[5] = 5
try:
    lock('now', CURRENT)
    libc.munlockall()
    lock('on fault', CURRENT | ONFAULT)
    libc.munlockall()
    lock('all', CURRENT | FUTURE)
    more = mmap.mmap(-1, 1 << 20)
    print(status('VmLck') >= 1 << 10)
    libc.munlockall()
    lock('later', FUTURE)
    libc.munlockall()
except MemoryError:
    print('no memory')
for flags in 0, 8, ONFAULT, CURRENT | 16:
    lock('flags', flags)
print(status('VmLck'), m[5])

# Nor is the pool in core dumps.
dumped, size = 0, 0
for line in open('/proc/self/smaps'):
    if line.startswith('Size:'):
        size = int(line.split()[1])
    elif line.startswith('VmFlags:') and ' dd' not in line:
        dumped += size
print(dumped < 1 << 20, dumped if dumped >= 1 << 20 else '')
EOF
python3 t.py
