#!/usr/bin/env bash
# Every directory above is listed in its own parent, so who climbs finds his name.
# needs: python3 perl
set -eu
cd "$1"
mkdir -p deep/down && cd deep/down
python3 - <<'EOF'
import os

def entries_of(above, name):
    """By scandir, and how often listdir has it."""
    with os.scandir(above) as entries:
        found = [e for e in entries if e.name == name]
    return found, os.listdir(above).count(name)

path, found = os.getcwd(), set()
while path != "/":
    entries, count = entries_of(*os.path.split(path))
    same = [(e.is_dir(), e.inode() == os.stat(path).st_ino) for e in entries]
    found.add((count, tuple(same)))
    path = os.path.dirname(path)
print(found)

# By climbing only, and twice through one descriptor.
fd, found = os.open(".", os.O_RDONLY), set()
while True:
    above = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
    here = os.fstat(fd)
    if os.path.samestat(os.fstat(above), here):
        break
    is_here = lambda n: os.path.samestat(os.stat(n, dir_fd=above, follow_symlinks=False), here)
    names = [[n for n in os.listdir(above) if is_here(n)] for _ in range(2)]
    found.add((len(names[0]), names[0] == names[1]))
    os.close(fd)
    fd = above
print(found)
EOF
perl -MCwd -e 'print Cwd::_perl_abs_path(".") eq Cwd::getcwd() ? "climbed\n" : "lost\n"'
name=$PWD
while [[ $name != / ]]; do
    base=${name##*/} name=${name%/*} name=${name:-/}
    find "$name" -maxdepth 1 -name "$base" | wc -l
done | sort -u
