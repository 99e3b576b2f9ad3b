#!/usr/bin/env bash
# python3: os, io, mmap, subprocess, sqlite3, multiprocessing, tempfile, shutil, fcntl, threads.
# needs: python3
# modes: posix strict
set -eu
cd "$1"
cat >t.py <<'END'
import ctypes, fcntl, hashlib, io, json, mmap, multiprocessing, os, pickle, shutil, socket
import sqlite3, stat, subprocess, sys, tempfile, threading, zipfile
from pathlib import Path

def check(what, value): print(what, value, flush=True)

def relink(fd, name):
    # linkat in both ways that give an open file a name: AT_SYMLINK_FOLLOW and AT_EMPTY_PATH.
    libc = ctypes.CDLL(None, use_errno=True)
    for way, old in ((0x400, f'/proc/self/fd/{fd}'), (0x1000, '')):
        n = libc.linkat(fd if old == '' else -100, old.encode(), -100, name.encode(), way)
        check(f'linkat {name} {way:x}', 'done' if n == 0 else os.strerror(ctypes.get_errno()))

def operations():
    os.makedirs('o/p/q')
    Path('o/f').write_text('hello')
    os.link('o/f', 'o/h')
    os.symlink('f', 'o/s')
    check('nlink', os.stat('o/f').st_nlink)
    fd = os.open('o/f', os.O_RDWR | os.O_APPEND)
    os.write(fd, b' world')
    check('pread', os.pread(fd, 5, 6))
    os.pwritev(fd, [b'a', b'bc'], 0)
    check('readv', os.lseek(fd, 0, 0))
    bufs = [bytearray(3), bytearray(20)]
    check('preadv', (os.preadv(fd, bufs, 0), bytes(bufs[0])))
    os.fsync(fd)
    os.fdatasync(fd)
    os.ftruncate(fd, 4)
    check('fstat', os.fstat(fd).st_size)
    os.fchmod(fd, 0o604)
    check('mode', oct(os.stat('o/f').st_mode))
    os.utime('o/f', ns=(123456789, 987654321))
    check('times', (os.stat('o/f').st_atime_ns, os.stat('o/f').st_mtime_ns))
    d = os.dup(fd)
    os.lseek(d, 2, 0)
    check('shared offset', os.lseek(fd, 0, 1))
    os.dup2(fd, 200)
    os.close(fd)
    os.close(d)
    check('dup2', os.pread(200, 9, 0))
    os.close(200)
    os.setxattr('o/f', 'user.a', b'b' * 100)
    os.setxattr('o/f', 'user.b', b'')
    check('xattrs', (sorted(os.listxattr('o/f')), len(os.getxattr('o/f', 'user.a'))))
    os.removexattr('o/f', 'user.a')
    dirfd = os.open('o', os.O_RDONLY | os.O_DIRECTORY)
    check('listdir', sorted(os.listdir(dirfd)))
    f = os.open('n', os.O_CREAT | os.O_WRONLY, dir_fd=dirfd)
    os.write(f, b'x' * 10000)
    os.close(f)
    os.rename('n', 'm', src_dir_fd=dirfd, dst_dir_fd=dirfd)
    check('stat at', os.stat('m', dir_fd=dirfd).st_size)
    os.mkdir('k', dir_fd=dirfd)
    os.rmdir('k', dir_fd=dirfd)
    os.unlink('m', dir_fd=dirfd)
    os.close(dirfd)
    for name in ('o/none/x', 'o/f/x', 'o/p', 'o/f'):
        try: os.mkdir(name)
        except OSError as e: check(name, e.strerror)
    try: os.rmdir('o')
    except OSError as e: check('rmdir', e.strerror)
    with os.scandir('o') as entries:
        check('scandir', sorted((e.name, e.is_dir(), e.is_symlink()) for e in entries))
    os.replace('o/h', 'o/p/h')
    check('access', (os.access('o/p/h', os.R_OK), os.access('o/zz', os.F_OK)))
    os.chdir('o/p')
    check('cwd', os.getcwd().endswith('/o/p'))
    os.chdir('../..')
    s, t = os.open('o/f', os.O_RDONLY), os.open('o/t', os.O_CREAT | os.O_RDWR)
    check('sendfile', os.sendfile(t, s, 0, 100))
    check('copy', os.copy_file_range(s, t, 4, 0, 10))
    os.close(s)
    os.close(t)
    v = os.statvfs('.')
    check('statvfs', v.f_bsize > 0 and v.f_bfree > 0 and v.f_namemax)
    os.posix_fallocate(fd := os.open('o/fa', os.O_CREAT | os.O_RDWR), 0, 9999)
    check('fallocate', os.fstat(fd).st_size)
    os.close(fd)
    # The file system of a mount makes no files without names.
    if 'HF_MOUNTED' not in os.environ:
        fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)
        os.write(fd, b'tmp')
        check('tmpfile', (os.fstat(fd).st_nlink, os.path.exists(f'/proc/self/fd/{fd}')))
        relink(fd, 'o/named')
        os.unlink('o/named')
        relink(fd, 'o/named')
        os.close(fd)
        fd = os.open('.', os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        relink(fd, 'o/never')
        os.close(fd)
    fd = os.open('o/gone', os.O_CREAT | os.O_RDWR)
    os.write(fd, b'still')
    os.unlink('o/gone')
    check('unlinked', (os.pread(fd, 9, 0), os.fstat(fd).st_nlink))
    relink(fd, 'o/back')
    os.close(fd)
    r, w = os.pipe()
    os.write(w, b'pipe')
    check('pipe', os.read(r, 9))
    os.mkfifo('o/fifo')
    check('fifo', stat.S_ISFIFO(os.stat('o/fifo').st_mode))
    os.sync()

def streams():
    with open('i', 'w+') as f:
        f.write('äöü\n' * 3000)
        f.seek(0)
        check('text', len(f.read()))
        f.seek(0, 2)
        check('tell', f.tell())
    with open('i', 'r+b', buffering=0) as f:
        f.seek(6)
        f.write(b'XY')
        f.seek(0)
        check('raw', f.read(8))
        check('readinto', f.readinto(bytearray(100)))
    with open('i', 'ab') as f: f.write(b'z' * 100000); check('append', f.tell())
    with io.BufferedRandom(io.FileIO('i', 'r+')) as f:
        f.read(10)
        f.write(b'0123456789')
        f.seek(5)
        check('random', f.read(20))
    with zipfile.ZipFile('z', 'w') as z: z.writestr('a', 'b' * 1000); z.write('i')
    check('zip', zipfile.ZipFile('z').testzip())
    Path('p').write_bytes(pickle.dumps(list(range(1000))))
    check('pickle', sum(pickle.loads(Path('p').read_bytes())))
    json.dump({'a': [1, 2]}, open('j', 'w'))
    check('json', json.load(open('j')))
    check('lines', sum(1 for _ in open('i', 'rb')))

def mappings():
    with open('m', 'w+b') as f:
        f.truncate(3 << 20)
        m = mmap.mmap(f.fileno(), 0)
        m[0:5] = b'shard'
        m[2 << 20] = 7
        m.flush()
        f.seek(0)
        check('mapped', f.read(5))
        f.seek(100)
        f.write(b'written')
        f.flush()
        check('seen', m[100:107])
        pid = os.fork()
        if pid == 0: m[10:15] = b'child'; os._exit(0)
        os.waitpid(pid, 0)
        check('fork', m[10:15])
        check('find', m.find(b'\x07'))
        m.resize(4 << 20)
        check('resize', (len(m), os.fstat(f.fileno()).st_size))
        m.close()
        p = mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE)
        p[0:3] = b'own'
        f.seek(0)
        check('private', (p[0:3], f.read(3)))
        p.close()
        r = mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ, offset=2 << 20)
        check('offset', r[0])
        r.close()

def children():
    check('run', subprocess.run(['cat'], stdin=open('j'), capture_output=True).stdout)
    out, err = open('out', 'w'), open('err', 'w')
    subprocess.run('echo out; echo err >&2', shell=True, stdout=out, stderr=err)
    check('files', Path('out').read_text() + Path('err').read_text())
    code = 'import os; print(os.read(3, 4)); print(os.getcwd()[-3:])'
    def before():
        os.dup2(os.open('../../i', os.O_RDONLY), 3)
        os.set_inheritable(3, True)
    p = subprocess.Popen([sys.executable, '-c', code], close_fds=False, cwd='o/p',
                         stdout=subprocess.PIPE, preexec_fn=before)
    check('popen', p.communicate()[0])
    pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'echo spawned >sp; exit 5'], os.environ)
    check('posix_spawn', os.waitpid(pid, 0)[1] >> 8)
    check('sp', Path('sp').read_text())
    fd = os.open('inh', os.O_CREAT | os.O_RDWR)
    os.set_inheritable(fd, True)
    subprocess.run(['sh', '-c', f'echo inherited >&{fd}'], close_fds=False)
    check('inherited', (os.lseek(fd, 0, 1), os.pread(fd, 99, 0)))
    os.close(fd)

def work(n):
    with open(f'w{n}', 'w') as f: f.write(str(n) * 1000)
    with open('lock', 'a') as f:
        fcntl.lockf(f, fcntl.LOCK_EX)
        f.write(f'{n}\n')
        f.flush()
        fcntl.lockf(f, fcntl.LOCK_UN)
    return os.path.getsize(f'w{n}')

def parallel():
    with multiprocessing.Pool(4) as pool: check('pool', sum(pool.map(work, range(40))))
    check('locked', sorted(map(int, Path('lock').read_text().split())) == list(range(40)))
    def body(n):
        for i in range(20):
            Path(f'th/{n}-{i}').write_text('x' * i)
            os.stat(f'th/{n}-{i}')
            os.rename(f'th/{n}-{i}', f'th/{n}+{i}')
    os.mkdir('th')
    threads = [threading.Thread(target=body, args=(n,)) for n in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check('threads', len(os.listdir('th')))
    a = open('l2', 'w'); fcntl.flock(a, fcntl.LOCK_EX); b = open('l2')
    try: fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB); check('flock', 'shared')
    except BlockingIOError: check('flock', 'held')

def rest():
    with tempfile.TemporaryDirectory(dir='.') as d, tempfile.NamedTemporaryFile(dir=d) as f:
        f.write(b'x')
        f.flush()
        check('temp', os.path.getsize(f.name))
    with tempfile.TemporaryFile(dir='.') as f:
        f.write(b'abc')
        f.seek(1)
        check('unnamed', f.read())
    shutil.copytree('o', 'o2', symlinks=True, ignore=shutil.ignore_patterns('fifo'))
    shutil.copy2('i', 'i2')
    check('copytree', sorted(os.listdir('o2')))
    shutil.move('o2', 'o3')
    shutil.rmtree('o3')
    check('usage', shutil.disk_usage('.').total > 0)
    check('archive', os.path.basename(shutil.make_archive('ar', 'tar', 'th')))
    shutil.unpack_archive('ar.tar', 'un')
    check('unpacked', len(os.listdir('un')))
    db = sqlite3.connect('db')
    db.execute('create table t(x)')
    db.executemany('insert into t values(?)', ((i,) for i in range(1000)))
    db.commit()
    check('sqlite', db.execute('select sum(x) from t').fetchone())
    db.close()
    s = socket.socket(socket.AF_UNIX)
    s.bind('so')
    s.listen()
    c = socket.socket(socket.AF_UNIX)
    c.connect('so')
    c.send(b'hi')
    check('socket', s.accept()[0].recv(9))
    check('sha', hashlib.sha256(open('i', 'rb').read()).hexdigest()[:16])
    check('glob', len(list(Path('.').rglob('*+1'))))
    check('resolve', Path('o/s').resolve().name)
    check('walk', sum(len(f) for _, _, f in os.walk('o')))
    os.unlink('so')

parts = [operations, streams, mappings, children, parallel, rest]
# Only the pool's owner has shared mappings.
if 'HF_SERVED' in os.environ: parts.remove(mappings)
for part in parts:
    print('--', part.__name__)
    part()
END
python3 t.py; rm -f ar.tar z db lock
python3 -c 'import compileall; compileall.compile_dir(".", quiet=1)'; ls __pycache__
rm -r __pycache__
