#!/usr/bin/env bash
# What is stored through a mapping gives the file a new time: at msync, at fsync, at the end.
# needs: python3
set -eu
cd "$1"
cat >t.py <<'EOF'
import mmap, os

def is_new(what, times=(1000, 1000)):
    st = os.stat('f')
    print(what, st.st_mtime != times[1], st.st_ctime > 2000, flush=True)
    os.utime('f', times)

fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, bytes(4 * 4096))
os.utime('f', (1000, 1000))
m = mmap.mmap(fd, 4 * 4096)
m[0] = 1
m.flush()
is_new('msync')
m[4096] = 2
os.fsync(fd)
is_new('fsync')
m[8192] = 3
os.fdatasync(fd)
is_new('fdatasync')
m[12288] = 4
m.close()
is_new('munmap')

# Mappings through which nothing can be stored.
m = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
m.flush()
os.fsync(fd)
is_new('read only')
m.close()
is_new('closed')
m = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE)
m[0] = 7
m.flush()
os.fsync(fd)
m.close()
is_new('private')
EOF
python3 t.py
