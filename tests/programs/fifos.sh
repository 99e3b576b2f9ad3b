#!/usr/bin/env bash
# Named pipes: what is open and what its name names are one object.
# needs: python3
set -eu
cd "$1"
mkfifo -m 640 ff
cp ff out & echo hello >ff; wait; cat out
cat ff >out & echo again >ff; wait; cat out

python3 - <<'EOF'
import errno, fcntl, os, select, signal, stat, subprocess, sys, time

os.mkfifo("p", 0o600)
fd = os.open("p", os.O_RDWR)
same = lambda: os.path.samestat(os.fstat(fd), os.stat("p"))
print(same(), stat.S_ISFIFO(os.fstat(fd).st_mode))
print(os.fstatvfs(fd).f_bsize == os.statvfs("p").f_bsize)

# Attributes by descriptor are those of the name.
os.fchmod(fd, 0o604)
os.utime(fd, (1000, 2000))
st = os.stat("p")
print(oct(st.st_mode), st.st_mtime, st.st_atime, st.st_size, st.st_nlink)
os.fchown(fd, os.getuid(), os.getgid())

# Duplicates, children and other programs have the same object, and the data goes through all.
copy, high = os.dup(fd), fcntl.fcntl(fd, fcntl.F_DUPFD, 50)
for other in (copy, high):
    print(os.path.sameopenfile(fd, other), os.write(other, b"12"))
os.dup2(fd, 60, inheritable=True)
print(os.read(60, 10), os.readlink("/proc/self/fd/60") == os.path.realpath("p"))
program = "import os; print(os.path.samestat(os.fstat(60), os.stat('p')), os.write(60, b'far'))"
subprocess.run([sys.executable, "-c", program], pass_fds=[60], check=True)
print(os.read(fd, 10))
pid = os.fork()
if pid == 0:
    os._exit(0 if same() and os.write(fd, b"child") == 5 else 1)
print(os.waitpid(pid, 0)[1], os.read(fd, 10))
for number in (copy, high, 60):
    os.close(number)

# Opened once more by its descriptor, as /dev/stdin is.
again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
print(os.write(fd, b"once more"), os.read(again, 20))
print(os.path.samestat(os.fstat(again), os.fstat(fd)))
os.close(again)

# Poll and non-blocking reads are the kernel's.
os.set_blocking(fd, False)
try:
    os.read(fd, 1)
except BlockingIOError:
    print("empty", select.select([fd], [fd], [], 0)[1] == [fd])
print(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK != 0, fcntl.fcntl(fd, 1032) > 0)

def errno_of(call):
    try:
        return call()
    except OSError as e:
        return errno.errorcode[e.errno]

print([errno_of(c) for c in (
    lambda: os.lseek(fd, 0, 0), lambda: os.ftruncate(fd, 0), lambda: os.fsync(fd),
    lambda: os.pread(fd, 1, 0), lambda: os.fchdir(fd), lambda: os.listdir(fd),
    lambda: os.open("p", os.O_RDONLY | os.O_DIRECTORY),
    lambda: os.open("p", os.O_CREAT | os.O_EXCL))])

# Renamed and removed while it is open.
os.rename("p", "q")
print(os.path.samestat(os.fstat(fd), os.stat("q")))
os.unlink("q")
print(os.fstat(fd).st_nlink, os.write(fd, b"still"), os.read(fd, 10))
os.close(fd)
print(errno_of(lambda: os.fstat(fd)))

# Nobody on the other side; with O_PATH nobody is needed.
os.mkfifo("lonely", 0o600)
print(errno_of(lambda: os.open("lonely", os.O_WRONLY | os.O_NONBLOCK)))
os.close(os.open("lonely", os.O_PATH))

# Who waits for the other side can be interrupted, and killed.
class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

signal.signal(signal.SIGALRM, interrupt)
signal.alarm(1)
try:
    os.open("lonely", os.O_RDONLY)
except Interrupted:
    print("interrupted")
began = time.time()
print(subprocess.run(["timeout", "1", "cat", "lonely"]).returncode, time.time() - began < 20)
EOF
rm -f out
