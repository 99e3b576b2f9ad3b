#!/usr/bin/env bash
# Shared mappings through a life of processes: forks, programs that do not begin, exits, kills; what
# was stored is in the file, and processes meet in it.
# needs: python3
# unmounted: a hole is one until what was stored in it is written back
set -eu
cd "$1"
cat >t.py <<'END'
import ctypes, errno, mmap, os, shutil, signal, subprocess, sys, time

PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)

def fresh(name, pages):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.ftruncate(fd, pages * PAGE)
    return fd, mmap.mmap(fd, pages * PAGE)

def content(name): return open(name, 'rb').read().rstrip(b'\0')

# A child stores when its parent has gone, and the parent's own mapping is of no matter.
r, w = os.pipe()
if os.fork() == 0:
    fd, m = fresh('outlived', 1)
    if os.fork() == 0:
        while os.getppid() != 1 and os.stat('outlived').st_size == PAGE:
            time.sleep(0.01)
        m[:6] = b'stored'
        os.write(w, b'x')
        os._exit(0)
    os.ftruncate(fd, PAGE + 1)
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
os.close(w)
os.read(r, 1), os.read(r, 1)
print(content('outlived'))

# A program that does not begin; one that does, from a child.
fd, m = fresh('exec', 2)
try:
    os.execv('./none', ['none'])
except OSError as e:
    print(errno.errorcode[e.errno])
m[:4] = b'kept'
print(os.pread(fd, 4, 0), subprocess.run(['cat', 'exec'], capture_output=True).stdout[:4])
os.pwrite(fd, b'more', PAGE)
print(m[PAGE:PAGE + 4])

# Whoever executes a program leaves what it stored.
if os.fork() == 0:
    fd, m = fresh('left', 1)
    m[:4] = b'left'
    os.execvp('cat', ['cat', 'left'])
os.wait()

# Killed, and ended without a word.
for how in 'kill', 'exit':
    child = os.fork()
    if child == 0:
        fd, m = fresh(how, 3)
        m[2 * PAGE:2 * PAGE + 4] = how.encode()
        os.kill(os.getpid(), signal.SIGKILL) if how == 'kill' else os._exit(0)
    os.waitpid(child, 0)
    print(len(content(how)), content(how)[-4:])

# Without a name; with another one.
fd, m = fresh('gone', 1)
os.unlink('gone')
m[:4] = b'gone'
print(os.pread(fd, 4, 0))
fd, m = fresh('before', 1)
os.rename('before', 'after')
m[:5] = b'after'
print(content('after'))
m.close()
print(content('after'))

# What was stored in a hole is data for those who look for it.
fd, m = fresh('hole', 512)
m[300 * PAGE] = 7
print(os.lseek(fd, 300 * PAGE, os.SEEK_DATA) == 300 * PAGE)
subprocess.run(['cp', '--sparse=always', 'hole', 'copy'])
print(open('copy', 'rb').read()[300 * PAGE])
m.flush()
print(os.fstat(fd).st_size)

# Who only reads may not store, and who may store need not say so at first.
address = libc.mmap
address.restype = ctypes.c_void_p
address.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
protect = lambda at, prot: libc.mprotect(ctypes.c_void_p(at), PAGE, prot)
for flags in os.O_RDONLY, os.O_RDWR:
    fd = os.open('after', flags)
    at = address(None, 2 * PAGE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    print(ctypes.string_at(at, 5), protect(at, mmap.PROT_READ | mmap.PROT_WRITE))
    if flags == os.O_RDWR:
        ctypes.memmove(at, b'later', 5)
        print(content('after'), protect(at, mmap.PROT_READ))
for flags, prot in (os.O_RDONLY, 3), (os.O_WRONLY, 1), (os.O_WRONLY, 3):
    ctypes.set_errno(0)
    address(None, PAGE, prot, mmap.MAP_SHARED, os.open('after', flags), 0)
    print(errno.errorcode.get(ctypes.get_errno()))

# Many files at once.
many = [fresh(f'many{n}', 1)[1] for n in range(400)]
for n, m in enumerate(many):
    m[:3] = b'%03d' % n
print(all(content(f'many{n}') == b'%03d' % n for n in range(400)))
del many, m
print(all(content(f'many{n}') == b'%03d' % n for n in range(400)))
END
python3 -u t.py
cat >t.c <<'END'
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Processes that count under one lock, some of which are killed while they hold it. */
struct shared { pthread_mutex_t lock; long count, died; };

static struct shared *map(void) {
    int fd = open("lock", O_RDWR);
    struct shared *s = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return s;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        struct shared *s = map();
        for (int i = 0; i < 2000; i++) {
            if (pthread_mutex_lock(&s->lock) != 0) pthread_mutex_consistent(&s->lock), s->died++;
            s->count++;
            if (argv[1][0] == 'd' && i == 1999) _exit(0);
            pthread_mutex_unlock(&s->lock);
        }
        return 0;
    }
    close(open("lock", O_RDWR | O_CREAT | O_TRUNC, 0600));
    truncate("lock", 4096);
    struct shared *s = map();
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->lock, &how);
    for (int i = 0; i < 6; i++)
        if (fork() == 0) execl("./c.out", "c.out", i % 3 ? "counts" : "dies", NULL);
    while (wait(0) > 0) {}
    if (pthread_mutex_lock(&s->lock) != 0) s->died++;
    printf("%ld, %ld died\n", s->count, s->died);
}
END
if command -v gcc >/dev/null; then gcc -w -o c.out t.c -lpthread && ./c.out; fi
rm -f c.out lock
