#!/usr/bin/env bash
# Mappings of a file that is cut and grows again: which pages are there, which raise SIGBUS.
# needs: python3
set -eu
cd "$1"
cat >t.py <<'END'
import ctypes, mmap, os, signal

PAGE = 4096

def touch(m, at, write=False):
    # In a child, which says what it saw, or dies.
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        seen = m[at]
        if write: m[at] = 99
        os.write(w, b'%d' % seen)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(w)
    said = os.read(r, 9).decode()
    os.close(r)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said

def pages(what, m, *at):
    print(what, [touch(m, a) for a in at], flush=True)

def mapping(fd, n, shared=True):
    return mmap.mmap(fd, n * PAGE, mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)

def fresh(name, n):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, bytes(i // PAGE % 250 + 1 for i in range(n * PAGE)))
    return fd

def all_of(m): return bytes(m[i * PAGE] for i in range(len(m) // PAGE))

# A private mapping of who is served is a copy.
kinds = (True,) if 'HF_SERVED' in os.environ else (True, False)
for shared in kinds:
    kind = 'shared' if shared else 'private'
    fd = fresh('f', 6)
    m = mapping(fd, 6, shared)
    print(kind, all_of(m))
    m[5 * PAGE] = 77
    os.ftruncate(fd, PAGE + 100)
    pages('cut', m, 0, PAGE, PAGE + 99, PAGE + 100, 2 * PAGE - 1, 2 * PAGE, 5 * PAGE)
    print('write', touch(m, 3 * PAGE, True), touch(m, PAGE, True))
    os.ftruncate(fd, 4 * PAGE)
    pages('grown', m, PAGE, PAGE + 100, 2 * PAGE, 4 * PAGE - 1, 4 * PAGE)
    print(all_of(memoryview(m)[:4 * PAGE]))
    os.pwrite(fd, b'x', 5 * PAGE)
    pages('written over', m, 4 * PAGE, 5 * PAGE, 5 * PAGE + 1)
    os.close(os.open('f', os.O_WRONLY | os.O_TRUNC))
    pages('emptied', m, 0, 5 * PAGE)
    os.truncate('f', 3 * PAGE)
    pages('by name', m, 0, 3 * PAGE - 1, 3 * PAGE)
    m.close()
    os.close(fd)

# A mapping that begins beyond the end, and one in the middle of a file.
fd = fresh('g', 4)
m = mmap.mmap(fd, 2 * PAGE, offset=2 * PAGE)
os.ftruncate(fd, 3 * PAGE)
pages('second half', m, 0, PAGE)
os.ftruncate(fd, 0)
pages('nothing', m, 0, PAGE)
os.ftruncate(fd, 8 * PAGE)
pages('all', m, 0, PAGE)

# Cut by another process: seen after the next call that looks at files.
fd = fresh('h', 4)
m = mapping(fd, 4)
print(all_of(m))
if os.fork() == 0:
    os.truncate('h', PAGE)
    os._exit(0)
os.wait()
os.stat('h')
pages('cut by another', m, 0, PAGE, 3 * PAGE)

# A buffer that is not there is an error of the call.
out = os.open('o', os.O_RDWR | os.O_CREAT)
libc = ctypes.CDLL(None, use_errno=True)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
for n, call in enumerate((libc.write, libc.read)):
    for page in (0, 2):
        os.lseek(out, 0, 0)
        got = call(out, ctypes.c_void_p(at + page * PAGE), 10)
        print(call.__name__, page, got, os.strerror(ctypes.get_errno()) if got < 0 else '')

# Holes of a large shared mapping as buffers.
fd = fresh('sparse', 1)
os.ftruncate(fd, 8 << 20)
sparse = mmap.mmap(fd, 8 << 20)
view, src = memoryview(sparse), fresh('src', 2)
for off in (PAGE, (2 << 20) - 100, (3 << 20) + 5, 5 << 20):
    # Less than asked for is allowed.
    n = os.preadv(src, [view[off:off + 6000]], 0)
    want = b'\1' * min(n, PAGE) + b'\2' * (n - PAGE)
    print('preadv', off, n > 0, bytes(view[off:off + n]) == want)
print('pwrite', os.pwrite(src, view[6 << 20:(6 << 20) + 50], 0), os.pread(src, 3, 0))
view.release()

# A large one, with many cuts while another mapping stays.
fd = fresh('big', 600)
m, other = mapping(fd, 600), mapping(fd, 600)
for n in (500, 513, 100, 99, 600, 1):
    os.ftruncate(fd, n * PAGE)
    pages(f'big {n}', m, 0, (n - 1) * PAGE, min(n, 599) * PAGE, 599 * PAGE)
del m
pages('other', other, 0, PAGE, 599 * PAGE)

END
cat >t.c <<'END'
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static sigjmp_buf back;
static char *at;
static int code;
static void handler(int sig, siginfo_t *info, void *context) {
    at = info->si_addr;
    code = info->si_code;
    siglongjmp(back, sig);
}
int main(void) {
    int fd = open("c", O_RDWR | O_CREAT, 0600);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, 0);
    ftruncate(fd, 5 * 4096);
    char *m = mmap(0, 5 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; i < 5; i++) m[i * 4096] = 'a' + i;
    ftruncate(fd, 4096);
    volatile int page = 0;
    for (; page < 5; page++) {
        int sig = sigsetjmp(back, 1);
        if (sig == 0) {
            m[page * 4096 + 8] = 1;
            printf("%d is there\n", page);
        } else {
            printf("%d signal %d code %d at %ld\n", page, sig, code, (long)(at - m));
        }
    }
    ftruncate(fd, 5 * 4096);
    for (int i = 0; i < 5; i++) printf("%d %d\n", m[i * 4096], m[i * 4096 + 8]);
}
END
python3 -u t.py
if command -v gcc >/dev/null; then gcc -w -o c.out t.c && ./c.out; fi
rm -f c.out
