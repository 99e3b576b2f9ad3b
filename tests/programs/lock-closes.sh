#!/usr/bin/env bash
# What a lock hangs on ends when close(2) returns, also where the file was only opened to be read:
# a lock that a child took on what it inherited, or somebody on what a message brought, and one that
# was taken by the program before this one. Who tries the lock is another process, which nobody else
# asks for anything meanwhile.
set -eu
cd "$1"
echo x >file
cat >t.py <<'END'
import fcntl, os, socket, struct, sys

def checker():
    """A process that tries the lock when told to, and says whether it got it."""
    go, told = os.pipe(), os.pipe()
    if os.fork() == 0:
        # It ends when nobody can tell it anything.
        os.close(go[1])
        own = os.open("file", os.O_RDWR)
        while how := os.read(go[0], 1):
            try:
                if how == b"f":
                    fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(own, fcntl.LOCK_UN)
                else:
                    fcntl.lockf(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.lockf(own, fcntl.LOCK_UN)
                os.write(told[1], b"y")
            except BlockingIOError:
                os.write(told[1], b"n")
        os._exit(0)
    return go[1], told[0]

def free(go, told, how):
    os.write(go, how)
    return os.read(told, 1).decode()

if len(sys.argv) == 1:
    go, told = checker()
    for _ in range(20):
        fd = os.open("file", os.O_RDONLY)
        if os.fork() == 0:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os._exit(0)
        os.wait()
        before = free(go, told, b"f")
        os.close(fd)
        assert (before, free(go, told, b"f")) == ("n", "y")
    # One who gets the file in a message.
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while True:
            data, ancillary, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(4))
            if not data:
                os._exit(0)
            fd = struct.unpack("i", ancillary[0][2])[0]
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.close(fd)
            theirs.send(b"x")
    theirs.close()
    for _ in range(20):
        fd = os.open("file", os.O_RDWR)
        sent = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))
        ours.sendmsg([b"x"], [sent])
        ours.recv(1)
        before = free(go, told, b"f")
        os.close(fd)
        assert (before, free(go, told, b"f")) == ("n", "y")
    ours.close()
    os.wait()
    fd = os.open("file", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    for keep in fd, go, told:
        os.set_inheritable(keep, True)
    os.execv(sys.executable, [sys.executable, "t.py", str(go), str(told)])

go, told = int(sys.argv[1]), int(sys.argv[2])
before = free(go, told, b"l")
os.close(os.open("file", os.O_RDONLY))
assert (before, free(go, told, b"l")) == ("n", "y")
print("free")
END
python3 t.py
