#!/usr/bin/env bash
# Makes one of everything that a pool can hold in the directory "$1", beside what build.sh makes.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/build.sh" "$1"
cd "$1"
mkdir -p odd many
python3 - <<'PYTHON'
import os, socket

def setxattr(path, name, value):
    os.setxattr(path, name, value, follow_symlinks=False)

setxattr('docs/note-4', 'user.short', b'x')
setxattr('docs/note-4', 'user.long', b'y' * 5000)
setxattr('docs', 'user.of-a-directory', b'')
# u::rw-,u:1234:r--,g::r--,m::r--,o::---
acl = bytes.fromhex('02000000' '01000600ffffffff' '02000400d2040000' '04000400ffffffff'
                    '10000400ffffffff' '20000000ffffffff')
setxattr('docs/note-5', 'system.posix_acl_access', acl)
os.mkfifo('odd/fifo')
plug = socket.socket(socket.AF_UNIX)
plug.bind('odd/socket')
plug.close()
name = b'odd/' + bytes(b for b in range(1, 256) if b != ord('/'))
open(name, 'wb').write(b'a name of all bytes')
for n in range(5000):
    open(f'many/{n}', 'w').write('x' * (n % 700))
with open('odd/pieces', 'wb') as file:
    for n in range(0, 3000, 3):
        os.pwrite(file.fileno(), bytes([n % 251]) * 4096, n * 4096)
with open('odd/reserved', 'wb') as file:
    os.posix_fallocate(file.fileno(), 0, 1 << 20)
    file.write(b'and a start')
    os.truncate(file.fileno(), 11)
os.utime('odd/pieces', ns=(1_000_000_007, -3_000_000_009))
os.chmod('odd/reserved', 0o4751)
open('odd/inline', 'w').write('short')
os.link('odd/inline', 'odd/inline-2')
deep = 'deep'
for _ in range(60):
    os.mkdir(deep)
    deep += '/d'
PYTHON
