#!/usr/bin/env bash
# Sockets with a name: both sides are told the path that was bound.
# needs: python3
set -eu
cd "$1"
python3 - <<'EOF'
import ctypes, os, socket

libc = ctypes.CDLL(None)

def names(sock):
    return sock.getsockname(), sock.getpeername()

os.makedirs("d/" + "l" * 40)
for path in ("s", "./d/t", os.path.realpath("d") + "/u", "d/" + "l" * 40 + "/long"):
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    client.connect(path)
    accepted, _ = server.accept()
    told = [server.getsockname(), accepted.getsockname(), *reversed(names(client))]
    print([name.replace(os.getcwd(), ".") for name in told])
    # Removed, and bound again.
    os.unlink(path)
    other = socket.socket(socket.AF_UNIX)
    other.bind(path)
    print(other.getsockname() == server.getsockname() == path)

# A short buffer, a bad one, and a descriptor that is no socket.
for room in (0, 2, 3, 5, 110):
    data, size = ctypes.create_string_buffer(120), ctypes.c_uint(room)
    print(libc.getsockname(server.fileno(), data, ctypes.byref(size)),
          size.value - len(path), data.raw[2:room].strip(b"\0") == path.encode()[:max(0, room - 2)])
print(libc.getsockname(server.fileno(), 8, ctypes.byref(ctypes.c_uint(110))),
      libc.getsockname(0, data, ctypes.byref(size)))
# Datagrams, by sendto and by sendmsg, one with a descriptor.
inbox, out = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
inbox.bind("inbox")
os.close(os.open("file", os.O_RDWR | os.O_CREAT))
# Only the pool's owner sends its files.
sent = "/dev/null" if "HF_SERVED" in os.environ else "file"
fd = os.open(sent, os.O_RDWR)
print(out.sendto(b"one", "inbox"), out.sendmsg([b"two"], [], 0, "inbox"))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, "little"))]
print(out.sendmsg([b"three"], rights, 0, os.path.realpath("inbox")))
print(inbox.recv(10), inbox.recv(10))
data, [got], _, _ = socket.recv_fds(inbox, 10, 1)
print(data, os.path.samestat(os.fstat(got), os.stat(sent)))
for to in ("nobody", "file"):
    for send in (lambda: out.sendto(b"x", to), lambda: out.sendmsg([b"x"], [], 0, to)):
        try:
            send()
        except OSError as e:
            print(e.errno)
os.chmod("inbox", 0o000)
inbox.close()
try:
    out.sendto(b"x", "inbox")
except OSError as e:
    print(e.errno if os.getuid() == 0 else "refused")

a, b = socket.socketpair()
print(names(a), names(b))
EOF
