#!/usr/bin/env bash
# python3: files, a shared mapping, sub-processes and a pool of workers.
set -eu
mkdir "$1/python"; cd "$1/python"
python3 - <<'END'
import mmap, multiprocessing, os, subprocess
def work(n):
    with open(f'w{n}', 'w') as f: f.write(str(n) * 10000)
    return os.path.getsize(f'w{n}')
with multiprocessing.Pool(2) as pool: print(sum(pool.map(work, range(100))))
with open('m', 'w+b') as f:
    f.truncate(1 << 20)
    m = mmap.mmap(f.fileno(), 0)
    m[5000:5005] = b'hello'
    f.seek(5000)
    print(f.read(5))
print(subprocess.run('cat w1 | wc -c; ls | wc -l', shell=True, capture_output=True).stdout)
END
