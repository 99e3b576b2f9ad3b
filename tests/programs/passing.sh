#!/usr/bin/env bash
# Descriptors of files sent over sockets, to the same process, to others, and to nobody.
# needs: python3 gcc
set -eu
cd "$1"
cat >passing.py <<'EOF'
import array, fcntl, os, socket, subprocess, sys

def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

def receive(sock, count, flags=0, room=10):
    fds = array.array("i")
    control = sock.recvmsg(room, socket.CMSG_LEN(count * 4), flags)[1]
    for level, kind, data in control:
        fds.frombytes(data)
    return list(fds)

a, b = pair()
fd = os.open("file", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
os.write(fd, b"0123456789")
os.lseek(fd, 3, os.SEEK_SET)

# The same open file description: offset, flags and locks are shared.
socket.send_fds(a, [b"x"], [fd])
[got] = receive(b, 1)
print(os.read(got, 2), os.read(fd, 2), os.path.sameopenfile(fd, got), os.get_inheritable(got))
print(fcntl.fcntl(got, fcntl.F_GETFL) == fcntl.fcntl(fd, fcntl.F_GETFL))
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.flock(got, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.close(got)

# Several at once, the host's among them; a directory, a pipe, and one without rights.
null, there, path = os.open("/dev/null", 2), os.open(".", 0), os.open("file", os.O_PATH)
reader, writer = os.pipe()
socket.send_fds(a, [b"x"], [null, fd, there, path, writer])
got = receive(b, 5)
print(os.write(got[0], b"x"), os.fstat(got[1]).st_size, os.listdir(got[2]) == os.listdir("."))
print(os.fstat(got[3]).st_size, os.write(got[4], b"through"), os.read(reader, 10))
try:
    os.read(got[3], 1)
except OSError as e:
    print(e.errno)
for g in got:
    os.close(g)

# Peeked at, and then taken.
socket.send_fds(a, [b"x"], [fd])
[first], [second] = receive(b, 1, socket.MSG_PEEK), receive(b, 1)
os.close(first)
print(os.path.sameopenfile(second, fd))
os.close(second)

# The sender closes the file, removes it and ends; a child and another program receive it.
def sender(sock, name):
    pid = os.fork()
    if pid == 0:
        own = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(own, name.encode())
        os.lseek(own, 1, os.SEEK_SET)
        socket.send_fds(sock, [b"x"], [own])
        os.unlink(name)
        os._exit(0)
    print(os.waitpid(pid, 0)[1], os.path.exists(name))

sender(a, "gone")
[got] = receive(b, 1)
print(os.read(got, 10), os.fstat(got).st_nlink)
sender(a, "other")
program = """import os, socket
sock = socket.socket(fileno=0)
got = socket.recv_fds(sock, 10, 1)[1]
print(os.read(got[0], 10), os.fstat(got[0]).st_nlink)"""
subprocess.run([sys.executable, "-c", program], stdin=b, check=True)

# Forwarded by one who has it from a message.
c, d = pair()
socket.send_fds(a, [b"x"], [fd])
socket.send_fds(c, [b"x"], receive(b, 1))
[got] = receive(d, 1)
print(os.path.sameopenfile(got, fd))

# To nobody, more often than there is room for at once.
room = os.statvfs(".")
for n in range(3000):
    c, d = pair()
    own = os.open("lost", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(own, b"x" * 100000)
    socket.send_fds(c, [b"x"], [own])
    os.unlink("lost")
    os.close(own)
    c.close(), d.close()
# Others use the tmpfs that this is compared with.
lost = (room.f_bavail - os.statvfs(".").f_bavail) * room.f_frsize
print(lost < 50 << 20 or "HOLDFAST_SESSION" not in os.environ)

# To a closed socket; and to one that takes no more.
c, d = pair()
d.close()
try:
    socket.send_fds(c, [b"x"], [fd])
except OSError as e:
    print(e.errno)
c, d = pair()
c.setblocking(False)
sent = 0
try:
    while True:
        socket.send_fds(c, [b"x" * 4096], [fd])
        sent += 1
except BlockingIOError:
    print("full", sent > 3)
for n in range(sent):
    for got in receive(d, 1, room=4096):
        os.close(got)
print(os.path.sameopenfile(fd, os.dup(fd)))
EOF
python3 passing.py

cat >many.c <<'EOF'
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 3 };
static char control[COUNT][CMSG_SPACE(sizeof(int))], byte[COUNT];
static struct iovec iov[COUNT];
static struct mmsghdr messages[COUNT];

static void prepare(void) {
    for (int n = 0; n < COUNT; n++) {
        iov[n] = (struct iovec){&byte[n], 1};
        messages[n].msg_hdr = (struct msghdr){0, 0, &iov[n], 1, control[n], sizeof control[n], 0};
    }
}

int main(void) {
    int fds[COUNT], sockets[2];
    socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets);
    prepare();
    for (int n = 0; n < COUNT; n++) {
        char name[] = {'m', '0' + n, 0};
        /* The one in the middle is the host's. */
        fds[n] = n == 1 ? open("/dev/null", O_RDWR) : open(name, O_RDWR | O_CREAT, 0600);
        if (n != 1) write(fds[n], name, n + 1);
        struct cmsghdr *c = CMSG_FIRSTHDR(&messages[n].msg_hdr);
        *c = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(c), &fds[n], sizeof(int));
        byte[n] = 'a' + n;
    }
    printf("sent %d\n", sendmmsg(sockets[0], messages, COUNT, 0));
    for (int n = 0; n < COUNT; n++) printf("%u ", messages[n].msg_len);
    memset(control, 0, sizeof control), memset(byte, 0, sizeof byte), prepare();
    printf("\nreceived %d\n", recvmmsg(sockets[1], messages, COUNT, MSG_CMSG_CLOEXEC, 0));
    for (int n = 0; n < COUNT; n++) {
        int got;
        char text[8] = "";
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&messages[n].msg_hdr)), sizeof got);
        long len = pread(got, text, sizeof text - 1, 0);
        printf("%c %ld %s %d\n", byte[n], len, text, fcntl(got, F_GETFD));
    }

    /* What another process has is taken by its number: the pool's is not, and nothing is. */
    pid_t child = fork();
    if (child == 0) pause();
    int pidfd = syscall(SYS_pidfd_open, child, 0);
    int taken = syscall(SYS_pidfd_getfd, pidfd, fds[1], 0);
    printf("the host's: %d\n", write(taken, "x", 1) == 1);
    taken = syscall(SYS_pidfd_getfd, pidfd, fds[0], 0);
    int refused = taken == -1 && errno == EPERM;
    printf("the pool's: %d\n", getenv("HOLDFAST_SESSION") ? refused : taken > 0);
    kill(child, 9), waitpid(child, 0, 0);

    /* A message that is not there. */
    printf("%ld", syscall(SYS_sendmsg, sockets[0], 8, 0)), printf(" %d\n", errno);
    printf("%ld", syscall(SYS_recvmsg, sockets[1], 8, 0)), printf(" %d\n", errno);
}
EOF
gcc -O1 -w -o many many.c
./many
